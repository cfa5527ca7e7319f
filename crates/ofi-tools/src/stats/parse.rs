//! Parses the text of `ofi_core::export`, which comes from an untrusted process.

use super::{Endpoint, Histogram, Process, Statistic};

/// Whether the text is a valid name of a statistic or a label.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Parses a text.
///
/// # Errors
/// The expected and the actual text, with the line number.
pub fn parse(text: &str) -> Result<Process, String> {
    if text.contains(|c: char| c.is_control() && c != '\t' && c != '\n') {
        return Err("a control character: this is not a statistics text".into());
    }
    if !text.ends_with("\nend\n") {
        return Err("the text is truncated: it has no end".into());
    }
    let mut lines = text.lines().enumerate().map(|(place, line)| (place + 1, line));
    let first = lines.next().map(|(_, line)| line.split('\t').collect::<Vec<_>>());
    let mut process = match first.as_deref() {
        Some(["ofi-statistics", "1", pid, program]) => Process {
            pid: pid.parse().map_err(|_| format!("line 1: wanted a process id, found {pid:?}"))?,
            program: (*program).to_string(),
            endpoints: Vec::new(),
        },
        Some(["ofi-statistics", version, ..]) => {
            return Err(format!("statistics of version {version}; this program knows version 1"));
        }
        _ => return Err("line 1: wanted ofi-statistics".into()),
    };
    let mut ended = false;
    for (place, line) in lines {
        if ended {
            return Err(format!("line {place}: something after the end"));
        }
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["end"] => ended = true,
            ["endpoint", provider, domain, kind, address] => process.endpoints.push(Endpoint {
                provider: provider.into(),
                domain: domain.into(),
                kind: kind.into(),
                address: address.into(),
                statistics: Vec::new(),
                histograms: Vec::new(),
            }),
            ["histogram", name, labels, sum, counts, help] => {
                let endpoint = process.endpoints.last_mut();
                let endpoint =
                    endpoint.ok_or_else(|| format!("line {place}: a histogram without an endpoint"))?;
                let histogram = Histogram::parse(name, labels, sum, counts, help);
                endpoint.histograms.push(histogram.map_err(|why| format!("line {place}: {why}"))?);
            }
            [name, value, help] => {
                let endpoint = process.endpoints.last_mut();
                let endpoint =
                    endpoint.ok_or_else(|| format!("line {place}: a statistic without an endpoint"))?;
                if !is_name(name) {
                    return Err(format!("line {place}: wanted a statistic's name, found {name:?}"));
                }
                let value =
                    value.parse().map_err(|_| format!("line {place}: wanted a number, found {value:?}"))?;
                endpoint.statistics.push(Statistic { name: name.into(), value, help: help.into() });
            }
            _ => return Err(format!("line {place}: neither endpoint nor statistic")),
        }
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ofi-statistics\t1\t42\tserver\nendpoint\tudp\tlo\tRDM\tx\ntx_messages\t7\tmessages sent\n\
        histogram\taccess_seconds\trail=0;provider=udp\t9\t1,0,2\treads and writes\nend\n";

    #[test]
    fn endpoints_and_their_counters_are_read() {
        let process = parse(GOOD).unwrap();
        assert_eq!((process.pid, &*process.program), (42, "server"));
        assert_eq!(process.endpoints[0].value("tx_messages"), 7);
        assert_eq!(process.endpoints[0].value("nothing"), 0);
        let histogram = &process.endpoints[0].histograms[0];
        assert_eq!(
            (&*histogram.name, histogram.sum_us, &*histogram.buckets),
            ("access_seconds", 9, &[1, 0, 2][..])
        );
        assert_eq!(histogram.labels, [("rail".into(), "0".into()), ("provider".into(), "udp".into())]);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused_or_read_and_never_a_panic() {
        for len in 0..GOOD.len() - 1 {
            assert!(parse(&GOOD[..len]).is_err(), "{len}");
        }
        for place in 0..GOOD.len() {
            for byte in [0, b'\t', b'\n', b'x', b'9', 0x1b] {
                let mut changed = GOOD.as_bytes().to_vec();
                changed[place] = byte;
                let _ = parse(std::str::from_utf8(&changed).unwrap());
            }
        }
        assert!(parse(&GOOD.replace("server", "\x1b[2J")).is_err());
        assert!(parse(&GOOD.replace("\t1\t42", "\t2\t42")).unwrap_err().contains("version 2"));
        assert!(parse(&GOOD.replace("\t7\t", "\t-7\t")).is_err());
    }
}
