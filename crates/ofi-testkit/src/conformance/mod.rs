//! The suite: requirements on every transport, as cases that know none of the transports.
//!
//! A case is a function over a [`Kit`] that fails by panicking. [`conformance!`](crate::conformance!) makes a `#[test]`
//! of each for one transport and endpoint type, and lists the cases that do not apply with the reason.
//! `docs/conformance.toml` maps cases to rules.
//!
//! One file per concern, in the order of that table.

#![allow(missing_docs, reason = "the name of a case is the rule that it checks")]

mod list;

pub mod atomic;
pub mod auth;
pub mod av;
pub mod bad_input;
pub mod collective;
pub mod completion;
pub mod connection;
pub mod contexts;
pub mod counters;
pub mod datagram;
pub mod events;
pub mod flow;
pub mod levels;
pub mod lifecycle;
pub mod matching;
pub mod multi_receive;
pub mod negotiation;
pub mod order;
pub mod progress;
pub mod queue;
pub mod receive;
pub mod regions;
pub mod rma;
pub mod search;
pub mod sets;
pub mod shared_av;
pub mod shared_search;
pub mod sharing;
pub mod six;
pub mod sleepers;
pub mod threading;
pub mod triggers;
pub mod user_ids;
pub mod wait_objects;

use crate::kit::Kit;

/// A case of the suite.
pub type Case = fn(&dyn Kit);

/// Makes a `#[test]` of each case of the suite, in a module `$name`, for the transport behind a [`Kit`].
///
/// ```ignore
/// ofi_testkit::conformance!(shm: ShmPair);
/// ofi_testkit::conformance!(dgram: UdpDgramPair, skip = [messages_keep_their_order: "FI_EP_DGRAM promises none"]);
/// ```
#[macro_export]
macro_rules! conformance {
    ($name:ident: $kit:expr) => { $crate::conformance!($name: $kit, skip = []); };
    ($name:ident: $kit:expr, skip = [$($case:ident: $reason:literal),* $(,)?]) => {
        mod $name {
            #[allow(unused_imports, reason = "the kit may come from anywhere")]
            use super::*;

            static KIT: &dyn $crate::Kit = &$kit;
            const SKIPPED: &[(&str, &str)] = &[$((stringify!($case), $reason)),*];

            #[test]
            fn skipped_cases_exist_and_have_a_reason() {
                $crate::conformance::report_skipped(stringify!($name), KIT, SKIPPED);
            }

            $crate::for_each_case!($crate::conformance_tests);
        }
    };
}

/// The part of [`conformance!`] that is repeated for each case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                let case = $crate::conformance::$module::$case;
                $crate::conformance::run(super::KIT, super::SKIPPED, stringify!($case), case);
            })*
        })*
    };
}

macro_rules! names {
    ($($module:ident { $($case:ident)* })*) => { &[$((stringify!($module), &[$(stringify!($case)),*])),*] };
}

/// All cases, by module.
pub const CASES: &[(&str, &[&str])] = crate::for_each_case!(names);

/// Runs a case, or prints why it is skipped.
pub fn run(kit: &dyn Kit, skipped: &[(&str, &str)], name: &str, case: Case) {
    if let Some((_, reason)) = skipped.iter().find(|(skipped, _)| *skipped == name) {
        println!("skipped {name}: {reason}");
    } else if let Some(missing) = kit.missing() {
        println!("skipped {name}: {missing}");
    } else {
        case(kit);
    }
}

/// Prints the skipped cases in lines that `cargo xtask test` collects.
///
/// # Panics
/// If a case does not exist, or has no reason.
pub fn report_skipped(transport: &str, kit: &dyn Kit, skipped: &[(&str, &str)]) {
    let all: Vec<&str> = CASES.iter().flat_map(|(_, cases)| cases.iter().copied()).collect();
    for (name, reason) in skipped {
        assert!(all.contains(name), "{transport} skips {name}, which is no case");
        assert!(!reason.is_empty(), "{transport} skips {name} without a reason");
        println!("NOT RUN: {transport} skips {name}: {reason}");
    }
    if let Some(missing) = kit.missing() {
        println!("NOT RUN: {transport} skips all of its {} cases: {missing}", all.len());
    }
}

#[cfg(test)]
mod tests {
    use super::CASES;

    /// A case that is not in the list would never run.
    #[test]
    fn every_case_is_in_the_list_once() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance");
        let mut all = Vec::new();
        for (module, cases) in CASES {
            let text = std::fs::read_to_string(format!("{folder}/{module}.rs")).unwrap();
            let written: Vec<String> = text
                .lines()
                .filter_map(|line| line.strip_prefix("pub fn ")?.strip_suffix("(kit: &dyn Kit) {"))
                .map(str::to_string)
                .collect();
            assert_eq!(written, *cases, "the list of {module} in list.rs, in the order of the file");
            all.extend(written);
        }
        let files = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(files, CASES.len() + 2, "a file of cases that is not in list.rs");
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "two cases of one name");
    }
}
