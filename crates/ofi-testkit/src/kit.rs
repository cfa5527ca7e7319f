//! How the suite accesses a transport.

use ofi::raw::{Caps, GetinfoFlags, Hints, Info, MrMode, Result, Version};

use crate::opening::Opening;
use crate::pair::Pair;
use crate::side::TestEndpoint;

/// One transport and endpoint type, as the suite sees it.
pub trait Kit: Sync {
    /// Hints that select this transport and request nothing else.
    fn hints(&self) -> Hints;

    /// The default capabilities of cases, as far as this transport and endpoint type supports them.
    fn usual_caps(&self) -> Caps {
        USUAL
    }

    /// The capabilities of connected endpoints, as far as this transport supports them.
    fn connected_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }

    /// Whether endpoints may also use shared memory with peers on their host.
    fn shared_memory(&self) -> bool {
        true
    }

    /// Why it cannot run on this host, for example without a device. Cases are then reported as skipped.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Whether the data path is called through [`ofi::direct`], for shared memory.
    fn direct(&self) -> bool {
        false
    }

    /// Whether endpoints have their names before they are enabled.
    fn names_early(&self) -> bool {
        true
    }

    /// Whether a peer makes progress without calls even in manual mode, as with an adapter.
    fn moves_by_itself(&self) -> bool {
        false
    }
}

/// Registration modes of the application: all, so that every transport works.
const ANY_MR: MrMode = MrMode::VIRT_ADDR.union(MrMode::PROV_KEY).union(MrMode::ALLOCATED);

/// The default capabilities of cases.
const USUAL: Caps = Caps::MSG
    .union(Caps::TAGGED)
    .union(Caps::RMA)
    .union(Caps::SOURCE)
    .union(Caps::DIRECTED_RECV)
    .union(Caps::TAGGED_DIRECTED_RECV);

impl dyn Kit + '_ {
    /// The transport's hints, with the capabilities and registration modes of an ordinary application.
    pub fn usual(&self) -> Hints {
        self.hints().caps(self.usual_caps()).mr_mode(ANY_MR)
    }

    /// Calls getinfo.
    ///
    /// # Errors
    /// Those of getinfo.
    pub fn getinfo(&self, hints: &Hints) -> Result<Vec<Info>> {
        ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(hints))
    }

    /// The first info for hints that must be accepted.
    ///
    /// # Panics
    /// If they are refused.
    #[track_caller]
    pub fn info(&self, hints: &Hints) -> Info {
        self.getinfo(hints).expect("getinfo").remove(0)
    }

    /// Options for an endpoint with the usual capabilities; change them before [`Opening::open`].
    pub fn opening(&self) -> Opening {
        self.opening_for(self.usual())
    }

    /// Options for an endpoint with these hints; change them before [`Opening::open`].
    pub fn opening_for(&self, hints: Hints) -> Opening {
        Opening::new(hints).shared_memory(self.shared_memory()).direct(self.direct())
    }

    /// Opens one endpoint with the usual options.
    #[track_caller]
    pub fn side(&self) -> TestEndpoint {
        self.opening().open()
    }

    /// Opens two endpoints that know each other.
    #[track_caller]
    pub fn pair(&self) -> Pair {
        Pair::of(self.side(), self.side())
    }

    /// Opens two endpoints with the same options.
    #[track_caller]
    pub fn pair_with(&self, change: impl Fn(Opening) -> Opening) -> Pair {
        Pair::of(change(self.opening()).open(), change(self.opening()).open())
    }
}
