//! The engine in a simulated network: writes and messages in any order, rails that are cut or mute and work again,
//! operations that fail although they took place, agents that die and restart, transfers that are cancelled. Time is
//! virtual; no test waits.
//!
//! Checked throughout: no notification comes before its data or twice; every transfer ends once, by its deadline;
//! success means that the bytes are in place, and that nothing comes later; at the end the tables are empty.

#[path = "simulated/rails.rs"]
mod rails;
#[path = "simulated/shares.rs"]
mod shares;
#[path = "simulated/traffic.rs"]
mod traffic;
#[path = "simulated/world.rs"]
mod world;

use std::time::Duration;

use multirail::{Outcome, Way};
use ofi::Errno;
use proptest::prelude::*;

use rails::{NONE, Trouble};
use shares::{Bottleneck, Link, Pair};
use world::{AGENTS, Cut, RAILS, SLOTS, World};

fn live(seed: u64, trouble: Trouble) -> World {
    let mut world = World::new(seed, trouble);
    while world.posted.len() < SLOTS {
        let before = world.posted.len();
        world.post();
        let is_stuck = world.posted.len() == before;
        world.step();
        let pause =
            Duration::from_micros(world.random.bits() % if world.random.chance(100) { 400_000 } else { 500 });
        let until = world.now + pause;
        world.run(until);
        if is_stuck {
            for index in 0..AGENTS {
                world.publish(index);
            }
        }
    }
    world.run(world.now + Duration::from_secs(20));
    for posted in &world.posted {
        assert!(posted.ended.is_some(), "every transfer has an end");
        let agent = &mut world.agents[posted.from];
        if agent.life == posted.life {
            assert!(agent.core.progress(posted.id).unwrap().is_quiet);
            agent.core.release(posted.id);
        }
    }
    world.run(world.now + Duration::from_secs(5));
    for agent in &world.agents {
        let (operations, transfers, sessions) = agent.core.kept();
        assert_eq!((operations, transfers), (0, 0), "nothing is left");
        assert!(sessions <= 2 * AGENTS, "{sessions} sessions");
    }
    world
}

const LONG: Duration = Duration::from_secs(1000);

fn cuts() -> impl Strategy<Value = Cut> {
    prop::sample::select(vec![Cut::Mute, Cut::Unanswered])
}

/// Agents whose sessions are open, and which have leased each other's regions.
fn acquainted(seed: u64) -> World {
    let mut world = World::new(seed, NONE);
    world.scribbles = true;
    get_acquainted(&mut world);
    world
}

fn get_acquainted(world: &mut World) {
    for _ in 0..2 {
        for (from, to) in (0..AGENTS).flat_map(|from| (1..AGENTS).map(move |by| (from, (from + by) % AGENTS)))
        {
            world.post_between(from, to, Way::Write, LONG);
            world.run(world.now + Duration::from_secs(1));
        }
    }
}

fn cut_all(world: &mut World, rail: usize, cut: Cut, seconds: u64) {
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        world.cuts.insert((a, b, rail), (world.now + Duration::from_secs(seconds), cut));
    }
}

fn burst_of_posts(world: &mut World, burst: usize) {
    while world.posted.len() < SLOTS {
        for _ in 0..burst.min(SLOTS - world.posted.len()) {
            world.post_for(LONG);
        }
        world.run(world.now + Duration::from_millis(30));
    }
}

/// Writes of several transfers at a time, which use all rails, over these ways by turns.
fn burst_between(world: &mut World, ways: &[(usize, usize)]) {
    while world.posted.len() < SLOTS {
        for _ in 0..6.min(SLOTS - world.posted.len()) {
            let (from, to) = ways[world.posted.len() % ways.len()];
            world.post_between(from, to, Way::Write, LONG);
        }
        world.run(world.now + Duration::from_millis(100));
    }
}

/// All transfers have succeeded, and each notification was handed out once.
fn assert_done(world: &World) {
    for posted in &world.posted {
        assert_eq!(posted.ended, Some(Outcome::Done), "{:?} in slot {}", posted.way, posted.slot);
        assert_eq!(world.notified[posted.slot], u32::from(posted.notice), "slot {}", posted.slot);
    }
}

/// All rails work again: what they held has arrived, nothing was touched by it, and nothing is left.
fn end_quietly(world: &mut World) {
    world.run(world.now + Duration::from_secs(100));
    world.assert_scribbles();
    for posted in &world.posted {
        let core = &mut world.agents[posted.from].core;
        assert!(core.progress(posted.id).unwrap().is_quiet);
        core.release(posted.id);
    }
    for agent in &world.agents {
        let (operations, transfers, _) = agent.core.kept();
        assert_eq!((operations, transfers), (0, 0), "nothing is left");
        for (_, peer) in agent.core.peers() {
            assert!(agent.core.paths(peer, world.now).iter().all(|path| path.up), "all paths work again");
        }
    }
}

/// Cases of each property, of 48 transfers each: `OFI_RAILS_CASES` changes the number.
fn cases() -> u32 {
    let wanted = std::env::var("OFI_RAILS_CASES").ok();
    wanted.map_or(48, |cases| cases.parse().expect("OFI_RAILS_CASES is a number of cases"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn without_trouble_all_is_done_and_told(seed in any::<u64>()) {
        let world = live(seed, NONE);
        assert_done(&world);
        for agent in &world.agents {
            let counts = agent.core.counts();
            prop_assert_eq!((counts.malformed, counts.refused, counts.stale, counts.moved), (0, 0, 0, 0));
            // Accesses that end together are accounted for together, each in the class of its own length.
            for (latencies, lengths) in agent.core.latencies().iter().zip(&agent.accesses) {
                let mut shortest = 0;
                for (longest, histogram) in latencies.classes() {
                    let class = shortest..=longest.unwrap_or(u64::MAX);
                    let wanted = lengths.iter().filter(|len| class.contains(len)).count();
                    prop_assert_eq!(histogram.count(), wanted as u64, "accesses of {:?} bytes", class);
                    shortest = class.end().saturating_add(1);
                }
            }
        }
    }

    /// Rails without room take the offered work later: nothing is lost, and nothing comes twice.
    #[test]
    fn full_rails_delay_and_lose_nothing(seed in any::<u64>(), full in 1..800_u32) {
        let world = live(seed, Trouble { full, ..NONE });
        assert_done(&world);
    }

    /// Keys and local memory name the rails: no other one moves anything while these work.
    #[test]
    fn rails_far_from_either_end_are_not_used(seed in any::<u64>(), far in 0..RAILS) {
        let mut world = World::new(seed, NONE);
        for agent in &mut world.agents {
            (agent.keyed, agent.near) = (!0, !(1 << far));
        }
        (world.agents[0].keyed, world.agents[0].near) = (!(1 << far), !0);
        for index in 0..AGENTS {
            world.forget_and_publish(index);
        }
        burst_of_posts(&mut world, 4);
        world.run(world.now + Duration::from_secs(20));
        assert_done(&world);
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let peer = world.agents[from].core.find(&format!("agent-{to}")).unwrap();
            for path in world.agents[from].core.paths(peer, world.now) {
                let is_far = path.rail == far && (from > 0 || to == 0);
                prop_assert!(!is_far || path.moved == 0, "from {from} to {to}: {path:?}");
            }
        }
        let kept: usize = world.agents.iter().map(|agent| (agent.keyed != u64::MAX) as usize).sum();
        prop_assert_eq!(kept, 1, "nobody asked for keys on all rails");
    }

    /// The only rail with keys fails, or goes mute: the owner gives keys on the others, and every transfer is done.
    #[test]
    fn when_the_rails_with_keys_fail_others_get_keys(seed in any::<u64>(), near in 0..RAILS, is_mute in any::<bool>()) {
        let mut world = World::new(seed, NONE);
        for index in 0..AGENTS {
            (world.agents[index].keyed, world.agents[index].near) = (1 << near, 1 << near);
            world.forget_and_publish(index);
        }
        get_acquainted(&mut world);
        prop_assert!(world.agents.iter().all(|agent| agent.keyed == 1 << near), "not before it fails");
        let cut = if is_mute { Cut::Mute } else { Cut::Broken };
        cut_all(&mut world, near, cut, 1000);
        burst_of_posts(&mut world, 4);
        world.run(world.now + Duration::from_secs(60));
        assert_done(&world);
    }

    #[test]
    fn with_one_rail_cut_at_a_time_all_is_done(seed in any::<u64>(), rail in 0..RAILS) {
        let mut world = World::new(seed, NONE);
        for round in 0..SLOTS {
            world.post();
            if round % 8 == 4 {
                for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                    world.cuts.insert((a, b, rail), (world.now + Duration::from_millis(400), Cut::Broken));
                }
            }
            world.run(world.now + Duration::from_millis(150));
        }
        world.run(world.now + Duration::from_secs(20));
        for posted in &world.posted {
            let is_late = posted.ended == Some(Outcome::Failed(Errno::ETIMEDOUT));
            prop_assert!(is_late || posted.ended == Some(Outcome::Done), "{:?}", posted.ended);
        }
    }

    /// A rail goes silent forever: nothing that it took comes back. Acknowledgements and notifications go by another
    /// rail, and transfers with a part on the silent rail end long before their deadlines.
    #[test]
    fn a_mute_rail_costs_seconds_not_deadlines(seed in any::<u64>(), rail in 0..RAILS, burst in 1..6_usize) {
        let mut world = World::new(seed, NONE);
        let mut cut = Duration::MAX;
        while world.posted.len() < SLOTS {
            if world.posted.len() > SLOTS / 3 && cut == Duration::MAX {
                cut = world.now;
                for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                    world.cuts.insert((a, b, rail), (Duration::from_secs(100_000), Cut::Mute));
                }
            }
            for _ in 0..burst.min(SLOTS - world.posted.len()) {
                world.post_for(Duration::from_secs(1000));
            }
            let until = world.now + Duration::from_millis(30);
            world.run(until);
        }
        let last = world.now;
        world.run(last + Duration::from_secs(30));
        let mut done = 0;
        for posted in &world.posted {
            let is_late = posted.ended == Some(Outcome::Failed(Errno::ETIMEDOUT));
            prop_assert!(is_late || posted.ended == Some(Outcome::Done), "{:?}, 970 s before its deadline", posted.ended);
            done += usize::from(!is_late);
        }
        prop_assert!(done > SLOTS / 2, "{done} of {SLOTS} are done");
        let fenced: u64 = world.agents.iter().map(|agent| agent.core.counts().fenced).sum();
        prop_assert!(done == SLOTS || fenced > 0);
    }

    #[test]
    fn whatever_happens_each_transfer_has_one_end_and_nothing_is_left(
        seed in any::<u64>(),
        cut in 0..100_u32,
        mute in prop::sample::select(vec![0, 500, 1000_u32]),
        kill in 0..60_u32,
        cancel in 0..200_u32,
        disconnect in 0..60_u32,
        ambiguous in 0..50_u32,
        late in prop::sample::select(vec![0, 20_u32]),
        full in prop::sample::select(vec![0, 50, 500_u32]),
        refused in prop::sample::select(vec![0, 20_u32]),
        unwilling in prop::sample::select(vec![0, 300_u32]),
    ) {
        live(seed, Trouble { cut, mute, kill, cancel, disconnect, ambiguous, late, full, refused, unwilling });
    }

    /// The work on a rail that goes mute moves to the others, and what the rail held arrives when it works again: after
    /// the transfers have ended and their memory was written anew. With `Cut::Unanswered` everything arrives at once,
    /// and only the answers are held: so notifications are handed out long before their transfers end.
    #[test]
    fn what_a_mute_rail_held_is_moved_and_comes_to_nothing_late(
        seed in any::<u64>(),
        rail in 0..RAILS,
        burst in 1..8_usize,
        cut in cuts(),
        seconds in 12..60_u64,
    ) {
        let mut world = acquainted(seed);
        cut_all(&mut world, rail, cut, seconds);
        burst_of_posts(&mut world, burst);
        world.run(world.now + Duration::from_secs(40));
        assert_done(&world);
        end_quietly(&mut world);
    }

    /// The rail works again in the moment in which it is fenced: what it held arrives before the keys are closed or
    /// after that, is counted or refused, and its second copy does not come after the notification.
    #[test]
    fn what_arrives_during_the_fence_completes_no_notification_early(
        seed in any::<u64>(),
        rail in 0..RAILS,
        burst in 4..16_usize,
    ) {
        let mut world = acquainted(seed);
        cut_all(&mut world, rail, Cut::Mute, 1000);
        burst_of_posts(&mut world, burst);
        let limit = world.now + Duration::from_secs(30);
        while world.agents.iter().all(|agent| agent.core.counts().fenced == 0) && world.now < limit {
            world.run(world.now + Duration::from_micros(50));
        }
        world.mend();
        world.run(world.now + Duration::from_secs(40));
        assert_done(&world);
        end_quietly(&mut world);
    }

    /// A rail reports writes as failed that arrive later: up to 60 ms after the report, when their second copies have
    /// arrived, the transfers have ended, and programs have changed the memory.
    #[test]
    fn a_write_that_arrives_after_it_was_reported_as_failed_comes_to_nothing(
        seed in any::<u64>(),
        rail in 0..RAILS,
        late in 1..200_u32,
        burst in 1..8_usize,
    ) {
        let mut world = acquainted(seed);
        (world.trouble.late, world.late_rail) = (late, Some(rail));
        burst_of_posts(&mut world, burst);
        world.run(world.now + Duration::from_secs(40));
        assert_done(&world);
        end_quietly(&mut world);
    }

    /// What another session has in flight with the same region, over the same rail of the same agent, goes on.
    #[test]
    fn another_session_with_the_region_goes_on_beside_a_fence(seed in any::<u64>(), rail in 0..RAILS, cut in cuts()) {
        let mut world = acquainted(seed);
        world.cuts.insert((0, 1, rail), (world.now + Duration::from_secs(30), cut));
        let before = world.agents[0].accesses[rail].len();
        burst_between(&mut world, &[(0, 1), (2, 1)]);
        prop_assume!(world.agents[0].accesses[rail].len() > before);
        world.run(world.now + Duration::from_secs(40));
        prop_assert!(world.agents[0].core.counts().fenced > 0);
        prop_assert!(world.posted.iter().all(|posted| posted.ended == Some(Outcome::Done)));
        let counts = world.agents[2].core.counts();
        prop_assert_eq!((counts.fenced, counts.moved), (0, 0));
        let peer = world.agents[2].core.find("agent-1").unwrap();
        let failures: u64 = world.agents[2].core.paths(peer, world.now).iter().map(|path| path.failures).sum();
        prop_assert_eq!(failures, 0);
        end_quietly(&mut world);
    }

    /// Two agents write to each other over a rail that goes mute, and both fence it.
    #[test]
    fn both_ends_of_a_mute_path_fence_it_at_once(seed in any::<u64>(), rail in 0..RAILS, cut in cuts()) {
        let mut world = acquainted(seed);
        world.cuts.insert((0, 1, rail), (world.now + Duration::from_secs(30), cut));
        let before = [0, 1].map(|agent: usize| world.agents[agent].accesses[rail].len());
        burst_between(&mut world, &[(0, 1), (1, 0)]);
        prop_assume!((0..2).all(|agent| world.agents[agent].accesses[rail].len() > before[agent]));
        world.run(world.now + Duration::from_secs(40));
        prop_assert!(world.posted.iter().all(|posted| posted.ended == Some(Outcome::Done)));
        for agent in &world.agents[..2] {
            prop_assert!(agent.core.counts().fenced > 0);
        }
        end_quietly(&mut world);
    }

    /// A peer of an older version answers no request, and one that cannot close its keys does not either: then the
    /// transfers on a mute rail fail, and are not moved.
    #[test]
    fn without_an_answer_to_the_fence_transfers_fail(
        seed in any::<u64>(),
        rail in 0..RAILS,
        cut in cuts(),
        is_old in any::<bool>(),
    ) {
        let mut world = World::new(seed, NONE);
        world.agents[1].is_old = is_old;
        get_acquainted(&mut world);
        if !is_old {
            world.trouble.unwilling = 1000;
        }
        world.cuts.insert((0, 1, rail), (world.now + Duration::from_secs(60), cut));
        let before = world.agents[0].accesses[rail].len();
        burst_between(&mut world, &[(0, 1)]);
        prop_assume!(world.agents[0].accesses[rail].len() > before);
        world.run(world.now + Duration::from_secs(30));
        let mut failed = 0;
        for posted in &world.posted {
            let is_late = posted.ended == Some(Outcome::Failed(Errno::ETIMEDOUT));
            prop_assert!(is_late || posted.ended == Some(Outcome::Done), "{:?}", posted.ended);
            failed += usize::from(is_late);
        }
        // What a peer has counted and acknowledged is in place.
        prop_assert!(failed > 0 || cut == Cut::Unanswered);
        prop_assert_eq!(world.agents[0].core.counts().moved, 0);
    }
}

/// Writes that follow each other closely, and single ones.
const DEPTHS: [usize; 2] = [16, 1];

fn equal_links(told: Option<f64>) -> Vec<Link> {
    vec![Link { provider: "sim", speed: 1e9, told }; 4]
}

/// The parts that the paths had of the bytes of `count` writes, and bytes per second.
fn parts_of(pair: &mut Pair, count: usize, depth: usize) -> (Vec<f64>, f64) {
    let (moved, took) = pair.write(count, depth);
    let all = moved.iter().sum::<u64>() as f64;
    (moved.iter().map(|&bytes| bytes as f64 / all).collect(), all / took.as_secs_f64())
}

#[track_caller]
fn assert_near(parts: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    let is_near = |(part, expected): (&f64, &f64)| (part / expected - 1.0).abs() <= tolerance;
    assert!(parts.iter().zip(expected).all(is_near), "{parts:.3?}, not {expected:.3?}: {what}");
}

/// Paths of equal rails carry a quarter of the bytes each, whatever they have been given before: what is measured of
/// such a path is what it was given.
#[test]
fn equal_rails_have_equal_shares() {
    for seed in 1..=3 {
        for bottleneck in [Bottleneck::Links, Bottleneck::Host] {
            for (told, depth) in
                [None, Some(12.5e9)].into_iter().flat_map(|told| DEPTHS.map(|depth| (told, depth)))
            {
                let mut pair = Pair::new(seed, &equal_links(told), bottleneck);
                for round in 0..3 {
                    let (parts, _) = parts_of(&mut pair, 100, depth);
                    let what =
                        format!("round {round} of {seed}, {bottleneck:?}, {told:?}, {depth} at a time");
                    assert_near(&parts, &[0.25; 4], 0.05, &what);
                }
            }
        }
    }
}

/// A descriptor above the striping threshold is spread although its parts are below it.
#[test]
fn short_parts_of_a_long_descriptor_are_spread() {
    let quarter = 64 << 10;
    let mut pair = Pair::of_lengths(1, &equal_links(None), Bottleneck::Links, [4 * quarter, 4 << 20]);
    assert_eq!(pair.write(1, 1).0, [quarter; 4]);
}

/// Links of 100 and of 25 Gbit/s carry bytes in proportion: whether the NICs report their speeds, and whether the host
/// carries as much.
#[test]
fn unequal_links_have_shares_in_proportion() {
    let expected = [0.4, 0.1, 0.4, 0.1];
    for seed in 1..=3 {
        for (told, bottleneck, tolerance) in
            [(true, Bottleneck::Links, 0.05), (true, Bottleneck::Host, 0.05), (false, Bottleneck::Links, 0.2)]
        {
            let link = |speed| Link { provider: "sim", speed, told: told.then_some(speed) };
            let links = [12.5e9, 3.125e9, 12.5e9, 3.125e9].map(link);
            let mut pair = Pair::new(seed, &links, bottleneck);
            parts_of(&mut pair, 400, 16);
            let (parts, rate) = parts_of(&mut pair, 400, 16);
            assert_near(&parts, &expected, tolerance, &format!("{seed}, told {told}, {bottleneck:?}"));
            let least = if bottleneck == Bottleneck::Links { 0.75 * 31.25e9 } else { 0.7 * 15.6e9 };
            assert!(rate > least, "{rate:.3e} bytes per second of {seed}, told {told}, {bottleneck:?}");
        }
    }
}

/// A rail of half the speed of its equals has the share that it carries, and delays the others by little. When it is
/// as fast as they are again, it has a quarter again.
#[test]
fn a_slow_rail_among_equals_has_a_lesser_share_until_it_recovers() {
    for (seed, depth) in (1..=3).flat_map(|seed| DEPTHS.map(|depth| (seed, depth))) {
        for told in [None, Some(1e9)] {
            let mut links = equal_links(told);
            links[2].speed /= 2.0;
            let mut pair = Pair::new(seed, &links, Bottleneck::Links);
            parts_of(&mut pair, 60, depth);
            let (parts, rate) = parts_of(&mut pair, 100, depth);
            let what = format!("{seed}, {told:?}, {depth} at a time: {parts:.3?}");
            assert!((0.10..=0.18).contains(&parts[2]), "not a seventh: {what}");
            let least = if depth == 1 { 0.5 } else { 0.75 };
            assert!(rate > least * 3.5e9, "{rate:.3e} bytes per second of {what}");

            pair.set_speed(2, 1e9);
            parts_of(&mut pair, 100, depth);
            let (parts, _) = parts_of(&mut pair, 100, depth);
            assert_near(&parts, &[0.25; 4], 0.05, &format!("recovered, {what}"));
        }
    }
}

/// Long transfers whose accesses have the default length.
const LONG_TRANSFERS: [u64; 2] = [64 << 20, 4 << 20];

/// So has a rail of a quarter or a tenth of the speed of its equals, and one that is so slow that it gets only trials.
/// The rail recovers within four seconds.
#[test]
fn a_very_slow_rail_among_equals_has_a_lesser_share_until_it_recovers() {
    let cases = [(0.25, LONG_TRANSFERS), (0.1, LONG_TRANSFERS), (0.005, [4 << 20, 256 << 10])];
    for (seed, (factor, lengths)) in (1..=2).flat_map(|seed| cases.map(|case| (seed, case))) {
        let mut links = equal_links(None);
        links.iter_mut().for_each(|link| link.speed = 1.25e9);
        links[2].speed *= factor;
        let mut pair = Pair::of_lengths(seed, &links, Bottleneck::Links, lengths);
        let gigabytes = |count: usize| (count << 30) / lengths[0] as usize;
        parts_of(&mut pair, gigabytes(30), 8);
        let (parts, rate) = parts_of(&mut pair, gigabytes(4), 8);
        let what = format!("{factor} of {seed}: {parts:.3?}");
        let carries = factor / (3.0 + factor);
        let least = if factor < 0.1 { 0.0 } else { 0.6 };
        assert!((least * carries..1.5 * carries).contains(&parts[2]), "not {carries:.3}: {what}");
        assert!(rate > 0.75 * 3.0 * 1.25e9, "{rate:.3e} bytes per second of {what}");

        pair.set_speed(2, 1.25e9);
        parts_of(&mut pair, gigabytes(12), 8);
        let (parts, _) = parts_of(&mut pair, gigabytes(4), 8);
        assert_near(&parts, &[0.25; 4], 0.05, &format!("recovered, {what}"));
    }
}

/// A link that is much slower than the others carries its part too, with accesses of the default length.
#[test]
fn links_of_very_different_speeds_have_shares_in_proportion() {
    let links = [12.5e9, 12.5e9, 0.5e9].map(|speed| Link { provider: "sim", speed, told: Some(speed) });
    for seed in 1..=3 {
        let mut pair = Pair::of_lengths(seed, &links, Bottleneck::Links, LONG_TRANSFERS);
        parts_of(&mut pair, 40, 4);
        let (parts, _) = parts_of(&mut pair, 80, 4);
        assert_near(&parts, &[25.0 / 51.0, 25.0 / 51.0, 1.0 / 51.0], 0.1, &format!("{seed}"));
    }
}

/// After a rail has stood still, the others do not wait for it to make up for all that.
#[test]
fn rails_do_not_wait_long_for_one_that_stood_still() {
    for seed in 1..=3 {
        let mut links = equal_links(None);
        links.iter_mut().for_each(|link| link.speed = 125e6);
        let mut pair = Pair::new(seed, &links, Bottleneck::Links);
        let (_, rate) = parts_of(&mut pair, 60, 16);
        pair.pause(1, Duration::from_millis(400));
        let (_, meanwhile) = parts_of(&mut pair, 60, 16);
        assert!(meanwhile > 0.68 * rate, "{meanwhile:.3e} bytes per second, after {rate:.3e}: {seed}");
    }
}

/// Rails of different providers have the shares that they are measured to carry.
#[test]
fn rails_of_two_providers_are_weighted_by_what_they_carry() {
    for seed in 1..=3 {
        let link = |provider, speed| Link { provider, speed, told: None };
        let links = [link("fast", 3e9), link("fast", 3e9), link("slow", 0.5e9)];
        let mut pair = Pair::new(seed, &links, Bottleneck::Links);
        parts_of(&mut pair, 20, 16);
        let (parts, rate) = parts_of(&mut pair, 100, 16);
        assert!((0.04..=0.11).contains(&parts[2]), "{parts:.3?} of {seed}, not a thirteenth");
        assert!(rate > 0.75 * 6.5e9, "{rate:.3e} bytes per second of {seed}");
    }
}
