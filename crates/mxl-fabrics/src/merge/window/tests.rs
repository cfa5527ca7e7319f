use std::collections::{BTreeMap, BTreeSet};

use super::*;
use proptest::prelude::*;

const SLICES: u16 = 4;
const BOTH: u8 = 0b11;

fn window(length: u64) -> Window {
    Window::new(length, SLICES)
}

fn copy(path: usize, index: u64, slices: u16) -> Copy {
    Copy { path, index, slices, invalid: false }
}

fn whole(index: u64) -> Copy {
    copy(0, index, SLICES)
}

fn invalid(path: usize, index: u64) -> Copy {
    Copy { invalid: true, ..copy(path, index, SLICES) }
}

#[test]
fn a_valid_copy_replaces_an_invalid_one_and_never_the_other_way_round() {
    let mut window = window(4);
    assert_eq!(window.judge(invalid(0, 7), None, BOTH), Verdict::Invalid);
    window.take(invalid(0, 7), None);
    assert_eq!(window.judge(invalid(1, 7), None, BOTH), Verdict::Duplicate);
    assert_eq!(window.judge(copy(1, 7, 2), None, BOTH), Verdict::Duplicate);
    assert_eq!(window.judge(whole(7), None, BOTH), Verdict::Better);
    window.take(whole(7), None);
    assert_eq!(window.judge(invalid(1, 7), None, BOTH), Verdict::Duplicate);
    assert_eq!(window.judge(whole(7), None, BOTH), Verdict::Duplicate);
}

#[test]
fn slices_come_from_whichever_path_has_more() {
    let mut window = window(4);
    for (path, slices, from) in [(0, 1, 0), (1, 2, 1), (0, 3, 2), (1, 4, 3)] {
        assert_eq!(window.judge(copy(path, 7, slices), None, BOTH), Verdict::New { from });
        window.take(copy(path, 7, slices), None);
        assert_eq!(window.judge(copy(1 - path, 7, slices), None, BOTH), Verdict::Duplicate);
    }
}

#[test]
fn a_grain_in_the_middle_is_invalid_only_if_nobody_completes_it() {
    let mut first = window(4);
    first.take(copy(0, 7, 2), None);
    assert_eq!(first.judge(invalid(0, 7), None, BOTH), Verdict::Held);
    assert_eq!(first.judge(copy(1, 7, 4), None, BOTH), Verdict::New { from: 2 });
    // No path is left that could complete it.
    assert_eq!(first.judge(invalid(1, 7), None, BOTH), Verdict::Invalid);
    // Or it takes too long.
    let mut second = window(4);
    second.take(copy(0, 7, 2), None);
    assert_eq!(second.judge(invalid(0, 7), None, BOTH), Verdict::Held);
    second.take(whole(8), None);
    assert_eq!(second.hopeless(), None);
    second.take(whole(9), None);
    assert_eq!(second.hopeless(), Some(invalid(0, 7)));
    second.take(invalid(0, 7), None);
    assert_eq!(second.hopeless(), None);
}

#[test]
fn a_grain_that_stays_in_the_middle_is_told_as_lost() {
    let mut window = window(4);
    window.take(copy(0, 7, 2), None);
    for index in 8..11 {
        assert_eq!(window.take(whole(index), None), []);
    }
    assert_eq!(window.take(whole(11), None), [(7, 1)]);
}

#[test]
fn an_index_from_the_far_future_is_dropped_and_told_as_lost_when_it_is_confirmed() {
    let mut window = window(4);
    window.take(whole(10), None);
    for _ in 0..3 {
        assert_eq!(window.judge(copy(1, u64::MAX, SLICES), None, BOTH), Verdict::Strange);
    }
    assert_eq!(window.judge(whole(11), None, BOTH), Verdict::New { from: 0 });
    window.take(whole(11), None);
    assert_eq!(window.judge(copy(1, u64::MAX, SLICES), None, BOTH), Verdict::Strange);
    assert_eq!(window.judge(whole(u64::MAX), None, BOTH), Verdict::New { from: 0 });
    assert_eq!(window.take(whole(u64::MAX), None), [(12, u64::MAX - 4 - 12)]);
}

proptest! {
    /// Two paths that take random steps near the head, with random slices, compared with a map of everything that was
    /// taken.
    #[test]
    fn each_grain_is_taken_once_in_order_of_slices_or_told_as_lost(
        steps in proptest::collection::vec((0_usize..2, 0_u64..12, 1_u16..=SLICES), 1..300)
    ) {
        const LENGTH: u64 = 6;
        let mut window = window(LENGTH);
        let (mut taken, mut lost) = (BTreeMap::<u64, u16>::new(), BTreeSet::new());
        let (mut head, mut first) = (1000_u64, None);
        for (path, step, slices) in steps {
            let index = head + step.min(10) - 5;
            let is_late = first.is_some() && index + LENGTH <= head;
            let there = taken.get(&index).copied().unwrap_or(0);
            match window.judge(copy(path, index, slices), None, BOTH) {
                Verdict::New { from } => {
                    prop_assert!(!is_late && from == there && slices > there);
                }
                Verdict::Duplicate => {
                    prop_assert!(!is_late && slices <= there);
                    continue;
                }
                Verdict::Late => {
                    prop_assert!(is_late);
                    continue;
                }
                other => prop_assert!(false, "{other:?}"),
            }
            prop_assert!(!lost.contains(&index));
            taken.insert(index, slices);
            for (from, count) in window.take(copy(path, index, slices), None) {
                prop_assert!(count > 0);
                for gone in from..from + count {
                    prop_assert!(taken.get(&gone).is_none_or(|slices| *slices < SLICES) && lost.insert(gone));
                }
            }
            head = if first.is_none() { index } else { head.max(index) };
            let first = *first.get_or_insert(index);
            for settled in first..(head + 1).saturating_sub(LENGTH) {
                let is_whole = taken.get(&settled) == Some(&SLICES);
                prop_assert!(is_whole != lost.contains(&settled), "{settled} at {head}");
            }
        }
    }
}
