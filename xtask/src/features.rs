//! The table of features: what each provider grants when it is asked, one question to a line.

use std::fmt::Write as _;

use ofi::raw::{
    AddrFormat, AtomicKind, AvAttr, AvType, BindFlags, Caps, CntrAttr, CntrEvents, CqAttr, CqFormat,
    Datatype, EpType, EqAttr, FiOp, GetinfoFlags, Hints, Info, MrMode, MsgOrder, OpFlags, Progress, Request,
    ResourceMgmt, Serialization, Threading, Version, WaitAttr, WaitObj, WaitSet,
};

/// One question: what a line is called, and what a provider answers.
type Question = (&'static str, fn(&str) -> String);

const QUESTIONS: &[Question] = &[
    ("endpoint types", |name| each(EpType::VALUES, |value| granted(name, hints().ep_type(value)))),
    ("address formats", |name| each(AddrFormat::VALUES, |value| has_addresses(name, value))),
    ("primary capabilities", |name| capabilities(name, Caps::PRIMARY)),
    ("secondary capabilities", |name| capabilities(name, Caps::SECONDARY)),
    ("orders", orders),
    ("completion levels and flags", |name| ask(name, hints()).map_or(String::new(), |info| flags(&info))),
    ("registration modes", modes),
    ("progress", |name| each(Progress::VALUES, |value| granted(name, hints().progress(value)))),
    ("threading", |name| each(Threading::VALUES, |value| granted(name, hints().threading(value)))),
    ("resource management", |name| {
        each(ResourceMgmt::VALUES, |value| {
            ask(name, hints().resource_mgmt(value))
                .is_some_and(|info| info.domain_attr.resource_mgmt == value)
        })
    }),
    ("address vectors", |name| {
        each(AvType::VALUES, |av_type| {
            let attr = AvAttr { av_type, ..AvAttr::default() };
            domain(name).is_some_and(|domain| domain.open_av(&attr).is_ok())
        })
    }),
    ("queue formats", |name| {
        each(CqFormat::VALUES, |format| {
            let attr = CqAttr { format, ..CqAttr::default() };
            domain(name).is_some_and(|domain| domain.open_cq(&attr).is_ok())
        })
    }),
    ("wait objects", |name| {
        each(WaitObj::VALUES, |wait_obj| {
            let attr = CqAttr { wait_obj, wait_set: wait_set(name), ..CqAttr::default() };
            domain(name).is_some_and(|domain| domain.open_cq(&attr).is_ok())
        })
    }),
    ("wait objects of event queues", |name| {
        each(WaitObj::VALUES, |wait_obj| {
            let attr = EqAttr { wait_obj, wait_set: wait_set(name), ..EqAttr::default() };
            ask(name, hints())
                .and_then(|info| ofi::open_fabric(&info).ok())
                .is_some_and(|fabric| fabric.open_eq(&attr).is_ok())
        })
    }),
    ("counters", |name| {
        each(CntrEvents::VALUES, |events| {
            let attr = CntrAttr { events, ..CntrAttr::default() };
            domain(name).is_some_and(|domain| domain.open_counter(&attr).is_ok())
        })
    }),
    ("counters' wait objects", |name| {
        each(WaitObj::VALUES, |wait_obj| {
            let attr = CntrAttr { wait_obj, wait_set: wait_set(name), ..CntrAttr::default() };
            domain(name).is_some_and(|domain| domain.open_counter(&attr).is_ok())
        })
    }),
    ("atomic operations, of those that have a meaning", |name| atomics(name)),
    ("bytes of one atomic operation", |name| {
        let attr = domain(name)
            .and_then(|domain| domain.query_atomic(AtomicKind::Base, FiOp::Sum, Datatype::Uint8).ok());
        attr.map_or("none".into(), |attr| number(attr.count))
    }),
    ("longest message, bytes", |name| size(name, |info| info.ep_attr.max_msg_size)),
    ("longest injected message, bytes", |name| size(name, |info| info.tx_attr.inject_size)),
    ("pieces of a local buffer", |name| size(name, |info| info.tx_attr.iov_limit)),
    ("pieces of a remote buffer", |name| size(name, |info| info.tx_attr.rma_iov_limit)),
    ("pieces of a registration", |name| size(name, |info| info.domain_attr.mr_iov_limit)),
    ("remote CQ data, bytes", |name| size(name, |info| info.domain_attr.cq_data_size)),
    ("operations outstanding, each direction", outstanding),
];

/// The table: a column for each provider.
pub fn table() -> String {
    let names: Vec<String> = ofi::provider_names().into_iter().map(|(name, _)| name).collect();
    let mut text = format!("| | {} |\n|---|{}\n", bold(&names), "---|".repeat(names.len()));
    for (line, answer) in QUESTIONS {
        let answers: Vec<String> = names.iter().map(|name| answer(name)).collect();
        let _ = writeln!(text, "| {line} | {} |", answers.join(" | "));
    }
    text
}

fn bold(names: &[String]) -> String {
    names.iter().map(|name| format!("**{name}**")).collect::<Vec<_>>().join(" | ")
}

/// Hints of a program that registers memory in any way that it is asked to.
fn hints() -> Hints {
    Hints::new().mr_mode(MrMode::all() - MrMode::DEPRECATED)
}

fn ask(name: &str, hints: Hints) -> Option<Info> {
    let hints = hints.provider(name);
    let request = Request {
        version: Version::API,
        node: None,
        service: None,
        flags: GetinfoFlags::empty(),
        hints: Some(&hints),
    };
    ofi::explain(&request).ok()?.infos.into_iter().next()
}

fn granted(name: &str, hints: Hints) -> bool {
    ask(name, hints).is_some()
}

/// Whether an endpoint gets an address of this format.
fn has_addresses(name: &str, format: AddrFormat) -> bool {
    let Some(info) = ask(name, hints().addr_format(format)) else { return false };
    let open = || {
        let domain = ofi::open_fabric(&info)?.open_domain(&info, Serialization::LIBRARY)?;
        let endpoint = domain.open_endpoint(&info)?;
        endpoint.bind_cq(&domain.open_cq(&CqAttr::default())?, BindFlags::TRANSMIT | BindFlags::RECV)?;
        endpoint.bind_av(&domain.open_av(&AvAttr::default())?)?;
        endpoint.enable()?;
        endpoint.name()
    };
    open().is_ok_and(|name| name.format() == format)
}

fn domain(name: &str) -> Option<std::sync::Arc<dyn ofi::raw::Domain>> {
    let info = ask(name, hints())?;
    ofi::open_fabric(&info).ok()?.open_domain(&info, Serialization::LIBRARY).ok()
}

fn wait_set(name: &str) -> Option<std::sync::Arc<dyn WaitSet>> {
    let fabric = ofi::open_fabric(&ask(name, hints())?).ok()?;
    fabric.open_wait_set(&WaitAttr { wait_obj: WaitObj::Unspec }).ok()
}

/// The values, in C's names, for which `holds`. "Any" is no value.
fn each<V: Copy + PartialEq + Default + std::fmt::Display>(
    values: &[V],
    holds: impl Fn(V) -> bool,
) -> String {
    let any = values.iter().any(|value| value.to_string().ends_with("UNSPEC") && *value == V::default());
    let all = values.iter().copied().filter(|value| !(any && *value == V::default()));
    code(all.filter(|&value| holds(value)).map(|value| value.to_string()))
}

fn code(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
    if words.is_empty() { "none".into() } else { words.join(" ") }
}

/// Each capability of `group` that is granted with messages, tagged messages and RMA, or by itself.
fn capabilities(name: &str, group: Caps) -> String {
    let base = Caps::MSG | Caps::TAGGED | Caps::RMA;
    let has = |caps: Caps| {
        [caps, caps | base]
            .iter()
            .any(|&asked| ask(name, hints().caps(asked)).is_some_and(|info| info.caps.contains(caps)))
    };
    code(group.iter().filter(|&cap| has(cap)).map(|cap| cap.to_string()))
}

fn orders(name: &str) -> String {
    let has = |order| {
        ask(name, hints().msg_order(order)).is_some_and(|info| info.tx_attr.msg_order.contains(order))
    };
    code(MsgOrder::all().iter().filter(|&order| has(order)).map(|order| order.to_string()))
}

fn flags(info: &Info) -> String {
    let all: OpFlags = info.tx_attr.op_flags | info.rx_attr.op_flags;
    let levels = OpFlags::LEVELS;
    let asked =
        levels.iter().filter(|&level| ask(&info.fabric_attr.prov_name, hints().tx_op_flags(level)).is_some());
    code(
        asked
            .chain(all.iter())
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .map(|flag| flag.to_string()),
    )
}

/// Ways of registering that a program may insist on.
fn modes(name: &str) -> String {
    let ways = [
        ("scalable (offsets, the program's keys)", MrMode::empty()),
        ("virtual addresses", MrMode::VIRT_ADDR),
        ("provider's keys", MrMode::PROV_KEY),
        ("virtual addresses and provider's keys", MrMode::VIRT_ADDR | MrMode::PROV_KEY),
    ];
    let caps = Caps::MSG | Caps::RMA;
    let has = |mode| {
        ask(name, Hints::new().caps(caps).mr_mode(mode)).is_some_and(|info| info.domain_attr.mr_mode == mode)
    };
    let words: Vec<&str> = ways.iter().filter(|(_, mode)| has(*mode)).map(|(word, _)| *word).collect();
    words.join("; ")
}

/// How many combinations of call, operation and type there are, and which types.
fn atomics(name: &str) -> String {
    let Some(domain) = domain(name) else { return String::new() };
    let has = |kind, op, datatype| domain.query_atomic(kind, op, datatype).is_ok();
    let count = |datatype| {
        let all = AtomicKind::ALL.into_iter().flat_map(|kind| FiOp::VALUES.iter().map(move |&op| (kind, op)));
        all.filter(|&(kind, op)| has(kind, op, datatype)).count()
    };
    let types: Vec<(Datatype, usize)> =
        Datatype::VALUES.iter().map(|&datatype| (datatype, count(datatype))).collect();
    let all: usize = types.iter().map(|(_, count)| count).sum();
    let with = types.iter().filter(|(_, count)| *count > 0);
    format!("{} on {}", number(all), code(with.map(|(datatype, _)| datatype.to_string())))
}

fn size(name: &str, field: fn(&Info) -> usize) -> String {
    ask(name, hints()).map_or(String::new(), |info| number(field(&info)))
}

/// The default, and the most that a program may ask for.
fn outstanding(name: &str) -> String {
    let Some(info) = ask(name, hints()) else { return String::new() };
    let most = (0..usize::BITS - 1)
        .map(|bit| 1usize << bit)
        .take_while(|&size| granted(name, hints().tx_size(size)));
    format!("{}; up to {}", number(info.tx_attr.size), most.last().map_or(String::new(), number))
}

fn number(value: usize) -> String {
    match value {
        _ if value == isize::MAX as usize => "2^63 - 1".into(),
        usize::MAX => "any".into(),
        _ => {
            let digits = value.to_string();
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
            groups.join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!(
            [number(0), number(999), number(1000), number(1_048_576)],
            ["0", "999", "1,000", "1,048,576"]
        );
    }

    #[test]
    fn every_line_has_an_answer_for_shm() {
        for (line, answer) in QUESTIONS {
            let answer = answer("shm");
            assert!(!answer.is_empty() && answer != "none", "{line}: {answer}");
        }
    }
}
