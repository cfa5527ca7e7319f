//! Rates between two samples.

use std::time::Duration;

use serde::Serialize;

use super::Collected;
use crate::stats::Endpoint;

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub program: String,
    /// The provider.
    pub provider: String,
    /// The endpoint's address, or its kind if it has none.
    pub address: String,
    /// Peers known to the endpoint.
    pub peers: u64,
    /// Messages sent per second.
    pub tx_messages: f64,
    /// Bytes of these messages per second.
    pub tx_bytes: f64,
    /// Messages received per second.
    pub rx_messages: f64,
    /// Bytes of these messages per second.
    pub rx_bytes: f64,
    /// Remote reads, writes and atomics posted per second.
    pub accesses: f64,
    /// Operations in flight.
    pub outstanding: u64,
    /// Posted receives.
    pub posted: u64,
    /// Unexpected messages.
    pub unexpected: u64,
    /// Packets sent again per second.
    pub resent: f64,
}

impl Row {
    /// Names of [`Row::cells`].
    pub const COLUMNS: [&str; 14] = [
        "pid",
        "program",
        "provider",
        "address",
        "peers",
        "tx msg/s",
        "tx B/s",
        "rx msg/s",
        "rx B/s",
        "rma/s",
        "tx queue",
        "rx posted",
        "unexpected",
        "resent/s",
    ];

    /// For people.
    pub fn cells(&self) -> [String; Self::COLUMNS.len()] {
        [
            self.pid.to_string(),
            self.program.clone(),
            self.provider.clone(),
            self.address.clone(),
            self.peers.to_string(),
            short(self.tx_messages),
            short(self.tx_bytes),
            short(self.rx_messages),
            short(self.rx_bytes),
            short(self.accesses),
            self.outstanding.to_string(),
            self.posted.to_string(),
            self.unexpected.to_string(),
            short(self.resent),
        ]
    }

    /// The sort key of column `column`, the largest first; the first four sort by text.
    pub fn weight(&self, column: usize) -> f64 {
        match column {
            4 => self.peers as f64,
            5 => self.tx_messages,
            6 => self.tx_bytes,
            7 => self.rx_messages,
            8 => self.rx_bytes,
            9 => self.accesses,
            10 => self.outstanding as f64,
            11 => self.posted as f64,
            12 => self.unexpected as f64,
            13 => self.resent,
            _ => 0.0,
        }
    }
}

/// A number with at most four digits.
fn short(value: f64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0}"),
        _ => format!("{value:.1}{}", units[unit]),
    }
}

/// The endpoints of `second`, with their rates since `first`. A new endpoint has no rates yet.
pub fn rows(first: &Collected, second: &Collected, between: Duration) -> Vec<Row> {
    let mut rows = Vec::new();
    for process in &second.processes {
        let before =
            first.processes.iter().find(|other| other.pid == process.pid && other.program == process.program);
        let endpoints = process.endpoints.iter().enumerate();
        // Traffic through an agent goes through its rails' endpoints.
        for (place, endpoint) in endpoints.filter(|(_, endpoint)| endpoint.kind != "AGENT") {
            // Endpoints that closed in between shift the others: then the address identifies an endpoint.
            let same = |other: &&Endpoint| other.address == endpoint.address && other.kind == endpoint.kind;
            let before = before.and_then(|process| {
                process.endpoints.get(place).filter(same).or_else(|| process.endpoints.iter().find(same))
            });
            let rate = |names: &[&str]| match before {
                None => 0.0,
                Some(before) => {
                    let risen =
                        names.iter().map(|name| endpoint.value(name).saturating_sub(before.value(name)));
                    risen.sum::<u64>() as f64 / between.as_secs_f64().max(1e-3)
                }
            };
            let peers = endpoint.statistics.iter().filter(|one| one.name.ends_with("_peers"));
            rows.push(Row {
                pid: process.pid,
                program: process.program.clone(),
                provider: endpoint.provider.clone(),
                address: if endpoint.address.is_empty() { &endpoint.kind } else { &endpoint.address }.clone(),
                // A peer may be reached over two paths.
                peers: peers.map(|one| one.value).max().unwrap_or(0),
                tx_messages: rate(&["tx_messages"]),
                tx_bytes: rate(&["tx_bytes"]),
                rx_messages: rate(&["rx_messages"]),
                rx_bytes: rate(&["rx_bytes"]),
                accesses: rate(&["tx_writes", "tx_reads", "tx_atomics"]),
                outstanding: endpoint.value("tx_outstanding"),
                posted: endpoint.value("rx_posted"),
                unexpected: endpoint.value("rx_unexpected_now"),
                resent: rate(&["udp_lost"]),
            });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Process, Statistic};

    fn look(address: &str, sent: u64) -> Collected {
        let stat = |name: &str, value| Statistic { name: name.into(), value, help: String::new() };
        let endpoint = Endpoint {
            provider: "udp".into(),
            domain: "lo".into(),
            kind: "RDM".into(),
            address: address.into(),
            statistics: vec![stat("tx_messages", sent), stat("shm_peers", 2), stat("udp_peers", 3)],
            histograms: Vec::new(),
        };
        Collected {
            processes: vec![Process { pid: 1, program: "p".into(), endpoints: vec![endpoint] }],
            problems: Vec::new(),
        }
    }

    #[test]
    fn rates_are_between_looks_and_of_the_same_endpoint() {
        let half = Duration::from_millis(500);
        let row = &rows(&look("a", 100), &look("a", 150), half)[0];
        assert_eq!((row.tx_messages, row.peers), (100.0, 3));
        assert_eq!(rows(&look("a", 100), &look("b", 150), half)[0].tx_messages, 0.0, "another endpoint");
        assert_eq!(rows(&look("a", 100), &look("a", 1), half)[0].tx_messages, 0.0, "it began anew");
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0.0, 999.4, 999.6, 1_234_567.0, 2e30].map(short).into();
        assert_eq!(shown[..4], ["0", "999", "1.0k", "1.2M"]);
        assert!(shown[4].ends_with('E'));
    }
}
