//! Tables for people: this program's own, and C's.

use std::time::Duration;

use super::measure::{AccessRow, Row};
use super::sizes;

/// Head of the table of messages.
pub fn head(checked: bool) -> String {
    let check = if checked { "     checked" } else { "" };
    format!("{:>8}{:>14}{:>12}{:>18}{check}\n", "bytes", "latency us", "rate M/s", "bandwidth GB/s")
}

/// A line of the table of messages.
pub fn row(row: &Row) -> String {
    let check = row.checked.map_or_else(String::new, |count| format!("{:>12}", format!("{count} ok")));
    let bandwidth = if row.bytes == 0 { "-".into() } else { figure(row.bandwidth_gbps) };
    let (latency, rate) = (figure(row.latency_us), figure(row.rate_mps));
    format!("{:>8}{latency:>14}{rate:>12}{bandwidth:>18}{check}\n", sizes::text(row.bytes))
}

/// Head of the table of remote accesses.
pub fn access_head() -> String {
    format!(
        "{:>8}  {:<12}{:>10}{:>14}{:>10}{:>14}\n",
        "bytes", "memory", "write us", "write GB/s", "read us", "read GB/s"
    )
}

/// A line of the table of remote accesses.
pub fn access_row(row: &AccessRow) -> String {
    let [write_us, write, read_us, read] =
        [row.write_us, row.write_gbps, row.read_us, row.read_gbps].map(figure);
    let size = sizes::text(row.bytes);
    format!("{size:>8}  {:<12}{write_us:>10}{write:>14}{read_us:>10}{read:>14}\n", row.memory)
}

/// A number with three significant digits.
fn figure(value: f64) -> String {
    match value {
        large if large >= 100.0 => format!("{large:.0}"),
        middle if middle >= 10.0 => format!("{middle:.1}"),
        small if small >= 1.0 => format!("{small:.2}"),
        tenths if tenths >= 0.1 => format!("{tenths:.3}"),
        hundredths if hundredths >= 0.01 => format!("{hundredths:.4}"),
        tiny => format!("{tiny:.5}"),
    }
}

/// Head of C's table.
pub fn head_of_c() -> String {
    let names = ["bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"];
    let [bytes, sent, ack, total, time, rate, usec, xfers] = names;
    format!("{bytes:<8}{sent:<8}{ack:<9}{total:<8}{time:>8} {rate:>10}{usec:>13}{xfers:>13}\n")
}

/// A line of C's table: `count` messages of `size` bytes to the server and as many back, in `time`.
pub fn row_of_c(size: usize, count: u64, time: Duration) -> String {
    let exchange = Exchange::new(size, count, time);
    let (bytes, sent, total) = (binary(size as u64), decimal(count), binary(exchange.total_bytes));
    let acked = format!("={sent}");
    format!(
        "{bytes:<8}{sent:<8}{acked:<9}{total:<8}{:>7.2}s {:>10.2}{:>13.3}{:>13.3}\n",
        time.as_secs_f64(),
        exchange.mb_per_sec,
        exchange.usec_per_xfer,
        exchange.mxfers_per_sec
    )
}

/// The figures of C's table.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Exchange {
    /// Size of a message.
    pub bytes: usize,
    /// Messages to the server; as many came back.
    pub sent: u64,
    /// Bytes both ways.
    pub total_bytes: u64,
    /// The total time.
    pub seconds: f64,
    /// 10^6 bytes a second, both ways.
    pub mb_per_sec: f64,
    /// One message one way.
    pub usec_per_xfer: f64,
    /// Messages per microsecond, one after the other.
    pub mxfers_per_sec: f64,
}

impl Exchange {
    /// The figures for `count` messages of `size` bytes each way in `time`.
    pub fn new(size: usize, count: u64, time: Duration) -> Exchange {
        let seconds = time.as_secs_f64().max(1e-9);
        let total_bytes = (size as u64).saturating_mul(count).saturating_mul(2);
        let usec_per_xfer = seconds * 1e6 / count.max(1) as f64 / 2.0;
        Exchange {
            bytes: size,
            sent: count,
            total_bytes,
            seconds,
            mb_per_sec: total_bytes as f64 / seconds / 1e6,
            usec_per_xfer,
            mxfers_per_sec: 1.0 / usec_per_xfer,
        }
    }
}

/// `size` with a power of 1024: `64`, `1.5k`, `1m`.
fn binary(size: u64) -> String {
    let (unit, letter) = match size {
        giga if giga >= 1 << 30 => (1 << 30, "g"),
        mega if mega >= 1 << 20 => (1 << 20, "m"),
        kilo if kilo >= 1 << 10 => (1 << 10, "k"),
        _ => (1, ""),
    };
    match (size / unit, size % unit * 10 / unit) {
        (whole @ 0..10, tenths @ 1..) => format!("{whole}.{tenths}{letter}"),
        (whole, _) => format!("{whole}{letter}"),
    }
}

/// `count` with a power of 1000: `10`, `1k`, `3m`.
fn decimal(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{}b", count / 1_000_000_000),
        1_000_000.. => format!("{}m", count / 1_000_000),
        1_000.. => format!("{}k", count / 1_000),
        few => few.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_s_table_has_c_s_columns() {
        let names: Vec<_> = head_of_c().split_whitespace().map(str::to_owned).collect();
        assert_eq!(names, ["bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"]);
        let line = row_of_c(1536, 1000, Duration::from_millis(2));
        let fields: Vec<_> = line.split_whitespace().collect();
        assert_eq!(fields, ["1.5k", "1k", "=1k", "2.9m", "0.00s", "1536.00", "1.000", "1.000"]);
    }

    #[test]
    fn columns_line_up() {
        let line = Row {
            bytes: 4 << 20,
            latency_us: 123.4,
            rate_mps: 0.0123,
            bandwidth_gbps: 51.53,
            window: 16,
            checked: Some(64),
        };
        assert_eq!(row(&line).len(), head(true).len());
        assert_eq!(row(&line), "   4 MiB           123      0.0123              51.5       64 ok\n");
        let line = AccessRow {
            bytes: 1,
            memory: Memory::Library,
            window: 64,
            write_us: 0.2,
            write_gbps: 0.01,
            read_us: 0.3,
            read_gbps: 0.01,
        };
        assert_eq!(access_row(&line).len(), access_head().len());
    }

    use super::super::options::Memory;
}
