//! The matcher against a naive model of it: two vectors, searched from the front.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Recv {
    serial: usize,
    context: usize,
    /// Messages that a multi-receive buffer still takes; 0 for a plain receive.
    uses: u32,
}

impl PostedReceive for Recv {
    fn context(&self) -> usize {
        self.context
    }

    fn memory(&self) -> usize {
        0
    }
}

/// Which message it is, and whether its payload was left at its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    serial: usize,
    remote: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Post(Want, usize, u32),
    /// With the bytes its payload has, and whether the owner takes from the match, or later by id.
    Arrive(Envelope, usize, bool),
    Cancel(Vec<usize>),
    Peek(Want),
    Claim(Want, usize),
    TakeClaimed(usize),
    Discard(Want),
    DropPeer(SourceId),
    ExtractPosted(SourceId),
    Drain,
}

#[derive(Default)]
struct Model {
    posted: Vec<(Want, Recv)>,
    messages: Vec<(Unexpected<Content>, Option<usize>)>,
    claims: Vec<usize>, // serials of claimed messages, first claimed first
}

impl Model {
    fn find_message(&self, want: &Want) -> Option<usize> {
        self.messages.iter().position(|(message, claim)| claim.is_none() && accepts(want, &message.envelope))
    }

    fn take_message(&mut self, want: &Want) -> Option<Unexpected<Content>> {
        self.find_message(want).map(|at| self.messages.remove(at).0)
    }

    fn find_claimed(&self, context: usize) -> Option<usize> {
        let position =
            |serial: &usize| self.messages.iter().position(|(message, _)| message.content.serial == *serial);
        self.claims.iter().filter_map(position).find(|&at| self.messages[at].1 == Some(context))
    }

    fn held(&self, peer: SourceId) -> usize {
        self.messages.iter().filter(|(message, _)| message.envelope.peer == peer).count()
    }
}

/// fi_tagged(3), word by word, in a form of its own.
fn accepts(want: &Want, envelope: &Envelope) -> bool {
    let from = match want.source {
        SourceFilter::Any => true,
        SourceFilter::From(peer) => peer == envelope.peer,
    };
    let tag = match want.space {
        Space::Untagged => true,
        Space::Tagged => envelope.tag & !want.ignore == want.tag & !want.ignore,
    };
    want.space == envelope.space && from && tag
}

struct Pair {
    matcher: Matcher<Recv, Content>,
    model: Model,
    config: MatcherConfig,
    serial: usize,
}

impl Pair {
    fn apply(&mut self, op: Op) {
        self.serial += 1;
        match op {
            Op::Post(want, context, uses) => self.post(want, Recv { serial: self.serial, context, uses }),
            Op::Arrive(envelope, bytes, at_once) => self.arrive(envelope, bytes, at_once),
            Op::Cancel(contexts) => contexts.into_iter().for_each(|context| {
                let at = self.model.posted.iter().position(|(_, recv)| recv.context == context);
                let expected = at.map(|at| self.model.posted.remove(at));
                let expected = expected.map(|(want, recv)| (want.space, recv));
                assert_eq!(self.matcher.cancel_by_context(context), expected);
            }),
            Op::Peek(want) => {
                let expected = self.model.find_message(&want).map(|at| &self.model.messages[at].0);
                assert_eq!(self.matcher.peek(&want), expected);
            }
            Op::Claim(want, context) => {
                let at = self.model.find_message(&want);
                if let Some(at) = at {
                    self.model.messages[at].1 = Some(context);
                    self.model.claims.push(self.model.messages[at].0.content.serial);
                }
                let expected = at.map(|at| &self.model.messages[at].0);
                assert_eq!(self.matcher.claim(&want, context), expected);
            }
            Op::TakeClaimed(context) => {
                let expected = self.model.find_claimed(context).map(|at| self.model.messages.remove(at).0);
                assert_eq!(self.matcher.take_claimed(context), expected);
            }
            Op::Discard(want) => assert_eq!(self.matcher.discard(&want), self.model.take_message(&want)),
            Op::DropPeer(peer) => self.drop_peer(peer),
            Op::ExtractPosted(peer) => {
                let directed = |want: &Want| want.source == SourceFilter::From(peer);
                let expected =
                    self.model.posted.extract_if(.., |(want, _)| directed(want)).map(|(_, recv)| recv);
                let expected: Vec<Recv> = expected.collect();
                assert_eq!(self.matcher.extract_posted(|want, _| directed(want)), expected);
            }
            Op::Drain => {
                let (receives, mut messages) = self.matcher.drain();
                let expected: Vec<Recv> = self.model.posted.drain(..).map(|(_, recv)| recv).collect();
                assert_eq!(receives, expected);
                messages.sort_by_key(|message| message.content.serial);
                assert_eq!(
                    messages,
                    self.model.messages.drain(..).map(|(message, _)| message).collect::<Vec<_>>()
                );
            }
        }
        self.check();
    }

    fn post(&mut self, want: Want, recv: Recv) {
        let expected = self.model.take_message(&want);
        match self.matcher.post(want, recv.clone()) {
            PostOutcome::Matched { recv: back, message } => {
                assert_eq!((back, Some(message)), (recv, expected));
            }
            PostOutcome::Queued(id) => {
                assert_eq!(expected, None);
                assert_eq!(self.matcher.get(id), Some(&recv));
                self.model.posted.push((want, recv));
            }
        }
    }

    fn arrive(&mut self, envelope: Envelope, bytes: usize, at_once: bool) {
        let Some(at) = self.model.posted.iter().position(|(want, _)| accepts(want, &envelope)) else {
            assert!(self.matcher.arrive(&envelope).is_none());
            return self.store(envelope, bytes);
        };
        let mut expected = self.model.posted[at].1.clone();
        let stays = expected.uses > 1;
        match stays {
            true => self.model.posted[at].1.uses -= 1,
            false => drop(self.model.posted.remove(at)),
        }
        let mut found = self.matcher.arrive(&envelope).expect("the model has one");
        let id = found.id();
        assert_eq!(found.recv(), &mut expected);
        match (stays, at_once) {
            (true, true) => found.recv().uses -= 1,
            (true, false) => self.matcher.get_mut(id).expect("it stays").uses -= 1,
            (false, true) => assert_eq!(found.take(), expected),
            (false, false) => assert_eq!(self.matcher.take(id), Some(expected)),
        }
        assert_eq!(self.matcher.get(id).is_some(), stays);
    }

    fn store(&mut self, envelope: Envelope, bytes: usize) {
        let remote = !self.matcher.may_hold_bytes(envelope.peer, bytes);
        let bytes_held = if remote { 0 } else { bytes };
        let content = Content { serial: self.serial, remote };
        let may = self.matcher.may_hold_envelope(envelope.peer);
        match self.matcher.store(&envelope, content.clone(), bytes_held) {
            Ok(id) => {
                assert!(may);
                assert_eq!(self.matcher.unexpected_mut(id), Some(&mut content.clone()));
                self.model.messages.push((Unexpected { envelope, bytes_held, content }, None));
            }
            Err(refused) => {
                assert_eq!((may, refused), (false, Refused { limit: Limit::Envelopes, content }));
                assert!(self.model.held(envelope.peer) >= 1, "a sender that holds nothing is never refused");
            }
        }
    }

    fn drop_peer(&mut self, peer: SourceId) {
        let lost = |(message, _): &mut (Unexpected<Content>, Option<usize>)| {
            message.envelope.peer == peer && message.content.remote
        };
        let expected: Vec<_> = self.model.messages.extract_if(.., lost).map(|(message, _)| message).collect();
        let claims: Vec<_> = self.model.messages.iter().filter(|(m, _)| m.envelope.peer == peer).collect();
        let mut seen = Vec::new();
        let mut removed = self.matcher.drop_peer(peer, |content, claim| {
            if !content.remote {
                seen.push((content.serial, claim));
            }
            content.remote
        });
        removed.sort_by_key(|message| message.content.serial);
        assert_eq!(removed, expected);
        seen.sort_unstable();
        assert_eq!(seen, claims.iter().map(|(m, claim)| (m.content.serial, *claim)).collect::<Vec<_>>());
    }

    fn check(&mut self) {
        while let Some(peer) = self.matcher.poll_resume() {
            assert!(self.matcher.may_hold_envelope(peer));
        }
        self.matcher.posted.check();
        self.matcher.unexpected.check();
        self.matcher.budget.check();
        assert_eq!(self.matcher.posted_len(), self.model.posted.len());
        assert_eq!(self.matcher.unexpected_len(), self.model.messages.len());
        let bytes: usize = self.model.messages.iter().map(|(message, _)| message.bytes_held).sum();
        assert_eq!(self.matcher.bytes_held(), bytes);
        assert!(bytes <= self.config.bytes);
        for peer in (0..PEERS).map(SourceId) {
            assert_eq!(self.matcher.envelopes_of(peer), self.model.held(peer));
        }
    }
}

/// Few peers, tags and contexts, so that most things meet.
const PEERS: u32 = 4;

fn peer() -> impl Strategy<Value = SourceId> {
    (0..PEERS).prop_map(SourceId)
}

fn source() -> impl Strategy<Value = SourceFilter> {
    prop_oneof![Just(SourceFilter::Any), peer().prop_map(SourceFilter::From)]
}

fn want() -> impl Strategy<Value = Want> {
    let ignore = prop_oneof![4 => Just(0), 1 => Just(!0), 1 => 1u64..8];
    let tagged =
        (source(), 0u64..8, ignore).prop_map(|(source, tag, ignore)| Want::tagged(source, tag, ignore));
    prop_oneof![1 => source().prop_map(Want::untagged), 3 => tagged]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let space = prop_oneof![1 => Just(Space::Untagged), 3 => Just(Space::Tagged)];
    (space, peer(), 0u64..8).prop_map(|(space, peer, tag)| Envelope { space, peer, tag, len: 9, data: None })
}

fn context() -> impl Strategy<Value = usize> {
    0..6usize
}

fn op() -> impl Strategy<Value = Op> {
    let uses = prop_oneof![4 => Just(0u32), 1 => 1..5u32];
    prop_oneof![
        200 => (want(), context(), uses).prop_map(|(want, context, uses)| Op::Post(want, context, uses)),
        240 => (envelope(), 0..40usize, any::<bool>()).prop_map(|(e, bytes, now)| Op::Arrive(e, bytes, now)),
        20 => vec(context(), 1..4).prop_map(Op::Cancel),
        25 => want().prop_map(Op::Peek),
        25 => (want(), context()).prop_map(|(want, context)| Op::Claim(want, context)),
        25 => context().prop_map(Op::TakeClaimed),
        20 => want().prop_map(Op::Discard),
        5 => peer().prop_map(Op::DropPeer),
        3 => peer().prop_map(Op::ExtractPosted),
        1 => Just(Op::Drain),
    ]
}

/// Sizes for which the budgets are tight, or do not matter.
fn config() -> impl Strategy<Value = MatcherConfig> {
    (prop_oneof![0..200usize, Just(1 << 20)], prop_oneof![0..24usize, Just(1_000)])
        .prop_map(|(bytes, envelopes)| MatcherConfig { bytes, envelopes, ..MatcherConfig::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_matcher_does_as_the_model(config in config(), ops in vec(op(), 0..600)) {
        let matcher = Matcher::new(&config);
        let mut pair = Pair { matcher, model: Model::default(), config, serial: 0 };
        ops.into_iter().for_each(|op| pair.apply(op));
    }
}
