//! The counters of a shared receive context.

use ofi_api::Statistic;

use super::SharedRx;
use crate::export::About;
use crate::export::Counted;
use crate::transport::Transport;

impl<T: Transport> Counted for SharedRx<T> {
    fn counts(&self) -> Vec<Statistic> {
        let guard = self.state.lock();
        let matcher = &guard.queue.matcher;
        let stat = |name, value: usize, help| Statistic { name, value: value as u64, help };
        vec![
            stat("rx_posted", matcher.posted_len() + guard.claimed.len(), "posted receives"),
            stat("rx_unexpected_now", matcher.unexpected_len(), "messages that wait for a receive"),
            stat("rx_unexpected_bytes", matcher.bytes_held(), "bytes of the unexpected messages"),
        ]
    }

    fn about(&self) -> About {
        let info = &self.domain.info;
        About {
            provider: info.fabric_attr.prov_name.clone(),
            domain: info.domain_attr.name.clone(),
            kind: "SRX".into(),
            address: String::new(),
        }
    }
}
