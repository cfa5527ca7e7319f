//! Maps hint bytes of an endpoint's doorbell memory to peers.
//!
//! Peers get bytes in turn. If there are more peers than bytes, several share one, which then stands for all of them.
//! (A byte that was ever shared stays shared; the cost is a check of idle peers.)

use ofi_core::transport::PeerId;

/// The peers that a byte stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hinted {
    /// No peer uses it.
    #[default]
    Nobody,
    /// This peer.
    One(PeerId),
    /// All peers that share it.
    Several,
}

/// The table of one endpoint's hint bytes and the peers that use them.
#[derive(Default)]
pub struct HintTable(Vec<Hinted>);

impl HintTable {
    /// Assigns the byte to `peer`. `has_it` returns whether its previous peer still uses it.
    pub fn assign(&mut self, hint: usize, peer: PeerId, has_it: impl FnOnce(PeerId) -> bool) {
        if self.0.len() <= hint {
            self.0.resize(hint + 1, Hinted::Nobody);
        }
        self.0[hint] = match self.0[hint] {
            Hinted::One(other) if other != peer && has_it(other) => Hinted::Several,
            Hinted::Several => Hinted::Several,
            _ => Hinted::One(peer),
        };
    }

    /// The peers that a byte stands for.
    pub fn of(&self, hint: usize) -> Hinted {
        self.0.get(hint).copied().unwrap_or_default()
    }

    /// Bytes that can be set.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_comes_round_means_all_that_have_it() {
        let mut table = HintTable::default();
        table.assign(5, 1, |_| unreachable!("nobody had it"));
        assert_eq!(
            (table.of(5), table.of(4), table.of(99), table.len()),
            (Hinted::One(1), Hinted::Nobody, Hinted::Nobody, 6)
        );
        table.assign(5, 1, |_| true);
        assert_eq!(table.of(5), Hinted::One(1), "the same peer again");
        table.assign(5, 2, |peer| peer != 1);
        assert_eq!(table.of(5), Hinted::One(2), "the first has gone");
        table.assign(5, 3, |peer| peer == 2);
        assert_eq!(table.of(5), Hinted::Several);
        table.assign(5, 4, |_| false);
        assert_eq!(table.of(5), Hinted::Several, "a third may have it");
    }
}
