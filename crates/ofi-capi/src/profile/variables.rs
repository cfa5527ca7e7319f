//! The variables of a profile: statistics under C's numbers.

use std::sync::{LazyLock, Mutex, PoisonError};

use ofi_api::Statistic;

use crate::abi::fi_profile_desc;
use crate::names;

/// The supported variables among libfabric's own, by number and C's name, with the statistics that hold their values.
/// Not supported are the list of unexpected messages (`FI_VAR_UNEXP_MSG_QUEUE`), refused connections, which belong to a
/// passive endpoint, and message queues and memory, which are not counted.
const COMMON: [CommonVariable; 4] = [
    CommonVariable(0, "pvar_unexp_msg_cnt", "rx_unexpected_now", "messages that wait for their receive"),
    CommonVariable(3, "pvar_connection_cnt", "cm_connections", "connections established"),
    CommonVariable(4, "pvar_conn_request", "cm_requests", "connections requested"),
    CommonVariable(5, "pvar_conn_accept", "cm_accepts", "connection requests accepted"),
];

/// Number, name, statistic, description.
struct CommonVariable(u32, &'static str, &'static str, &'static str);

/// The first number of our own variables: above libfabric's own, with provider bits as in C.
const OWN: u32 = 0x0f1 << 16;

/// `fi_primitive_type`, and its `FI_UINT64`.
const PRIMITIVE: (u32, u32) = (0, 7);

/// A variable and its value at some moment.
pub(super) struct Variable {
    pub id: u32,
    pub name: &'static str,
    pub help: &'static str,
    pub value: u64,
}

impl Variable {
    /// The variables of an object with these statistics: libfabric's own, then ours. A variable is the sum if several
    /// transports under one endpoint count the same thing.
    pub(super) fn all(statistics: Vec<Statistic>) -> Vec<Self> {
        let own = Statistic::add_up(statistics);
        let common = COMMON.iter().filter_map(|&CommonVariable(id, name, statistic, help)| {
            let found = own.iter().find(|own| own.name == statistic)?;
            Some(Self { id, name, help, value: found.value })
        });
        let mut all: Vec<Self> = common.collect();
        all.extend(own.iter().map(|&Statistic { name, value, help }| Self {
            id: number(name),
            name,
            help,
            value,
        }));
        all
    }

    /// The description that C lists.
    pub(super) fn description(&self) -> fi_profile_desc {
        fi_profile_desc {
            id: self.id,
            datatype_sel: PRIMITIVE.0,
            datatype: PRIMITIVE.1,
            flags: 0,
            size: size_of::<u64>(),
            name: names::interned(self.name),
            desc: names::interned(self.help),
        }
    }
}

/// The number of one of our own variables. A name keeps its number for the life of the process, for all endpoints.
fn number(name: &'static str) -> u32 {
    static NAMES: LazyLock<Mutex<Vec<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    OWN | at as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_shares_it_with_no_other() {
        let first = number("a name of this test");
        let other = number("another name of this test");
        assert_ne!(first, other);
        assert_eq!(number("a name of this test"), first);
        assert!(first >= OWN && other >= OWN && COMMON.iter().all(|common| common.0 < OWN));
    }

    #[test]
    fn what_two_transports_count_is_one_variable() {
        let stat = |value| Statistic { name: "cm_requests", value, help: "" };
        let all = Variable::all(vec![stat(2), stat(3)]);
        let listed: Vec<_> = all.iter().map(|variable| (variable.name, variable.value)).collect();
        assert_eq!(listed, [("pvar_conn_request", 5), ("cm_requests", 5)]);
    }
}
