//! A target that says whatever the test wants.
#![allow(dead_code, reason = "each test uses a part")]

use std::time::Instant;

use mxl::FlowDefinition;
use mxl_fabrics::message::Message;
use mxl_fabrics::{Initiator, OwnKeys, PeerState, Provider, TargetInfo};
use ofi::{AddrFormat, Address, CompletionKind, FiAddr, Hints, Node};

use crate::common::LONG;

/// A target whose messages the test writes one by one.
pub struct Hostile {
    pub node: Node,
    pub info: TargetInfo,
    pub initiator: Option<FiAddr>,
    pub nonce: u64,
}

impl Hostile {
    pub fn open(provider: (Provider, &str), definition: &FlowDefinition, id: u64) -> Self {
        let node = Node::open(&Hints::new().provider(provider.1)).unwrap();
        let name = node.name().unwrap();
        let geometry = Some(mxl_fabrics::message::geometry(&definition.geometry()));
        let version = mxl_fabrics::message::VERSION;
        let info = TargetInfo {
            id,
            provider: provider.0,
            format: name.format().as_c(),
            address: name.bytes().to_vec(),
            regions: Vec::new(),
            bounce: None,
            ours: Some(OwnKeys { version, geometry, has_writes: false, epoch: 1, address: None }),
        };
        Self { node, info, initiator: None, nonce: 0 }
    }

    /// Accepts the initiator's greeting.
    pub fn accept(&mut self, initiator: &mut Initiator) {
        self.hear_greeting(initiator);
        let (nonce, rings) = (self.nonce, mxl_fabrics::message::Remote::default());
        self.say(Message::Welcome { nonce, token: nonce ^ 5, rings, length: 0, receive: 4096 }.encode());
        let begin = Instant::now();
        while initiator.target(self.info.id).unwrap().0 != PeerState::Connected {
            self.turn(initiator);
            assert!(begin.elapsed() < LONG, "not connected");
        }
    }

    /// Waits for a greeting of the initiator, and drops all that comes before.
    pub fn hear_greeting(&mut self, initiator: &mut Initiator) {
        let begin = Instant::now();
        let (format, address) = loop {
            self.node.recv(vec![0; 8192]).map_err(|rejected| rejected.to_string()).unwrap();
            let bytes = loop {
                initiator.poll().unwrap();
                match self.node.poll().unwrap() {
                    Some(completion) if completion.kind() == CompletionKind::Receive => {
                        // One that is too long for the buffer is no greeting.
                        break completion.into_result().map(|done| done.bytes().to_vec()).unwrap_or_default();
                    }
                    _ => assert!(begin.elapsed() < LONG, "no greeting"),
                }
            };
            if let Some(Message::Hello { nonce, format, address, .. }) = Message::parse(&bytes) {
                self.nonce = nonce;
                break (format, address);
            }
        };
        let format = AddrFormat::from_c(format).unwrap();
        self.initiator = Some(self.node.insert(&Address::new(format, &address)).unwrap());
    }

    pub fn say(&self, bytes: Vec<u8>) {
        self.node.send(bytes, self.initiator.unwrap()).map_err(|rejected| rejected.to_string()).unwrap();
    }

    pub fn turn(&self, initiator: &mut Initiator) {
        initiator.poll().unwrap();
        while self.node.poll().unwrap().is_some() {}
    }

    /// Sends a message, which the initiator counts and drops.
    pub fn is_nonsense(&self, initiator: &mut Initiator, bytes: Vec<u8>, what: &str) {
        let before = (initiator.nonsense(), initiator.targets().collect::<Vec<_>>());
        self.say(bytes);
        let begin = Instant::now();
        while initiator.nonsense() == before.0 {
            self.turn(initiator);
            assert!(begin.elapsed() < LONG, "{what} was not counted");
        }
        let after = (before.0 + 1, before.1);
        assert_eq!((initiator.nonsense(), initiator.targets().collect::<Vec<_>>()), after, "{what}");
    }
}
