//! Connected endpoints (`FI_EP_MSG`) in tests: listening, and the events of connections.

use std::sync::Arc;

use ofi::raw::{
    EpType, EqAttr, EqErrorEntry, Errno, Event, EventKind, EventQueue, Fabric, Info, PassiveEndpoint, Result,
    WaitObj,
};

use crate::side::TestEndpoint;
use crate::wait;

/// A passive endpoint that listens.
pub struct Listener {
    /// The passive endpoint.
    pub pep: Arc<dyn PassiveEndpoint>,
    /// Its event queue.
    pub eq: Arc<dyn EventQueue>,
    /// Its fabric.
    pub fabric: Arc<dyn Fabric>,
}

/// Opens an event queue for tests.
///
/// # Errors
/// Those of the call.
pub fn open_eq(fabric: &Arc<dyn Fabric>) -> Result<Arc<dyn EventQueue>> {
    fabric.open_eq(&EqAttr { wait_obj: WaitObj::Fd, ..EqAttr::default() })
}

impl Listener {
    /// Opens a listening passive endpoint for `info`.
    ///
    /// # Errors
    /// Those of the calls involved.
    pub fn open(info: &Info) -> Result<Self> {
        Self::of(ofi::open_fabric(info)?, info)
    }

    /// The same in an open fabric.
    ///
    /// # Errors
    /// Those of the calls involved.
    pub fn of(fabric: Arc<dyn Fabric>, info: &Info) -> Result<Self> {
        let eq = open_eq(&fabric)?;
        let pep = fabric.open_passive(info)?;
        pep.bind_eq(&eq)?;
        pep.listen()?;
        Ok(Self { pep, eq, fabric })
    }

    /// The next connection request.
    ///
    /// # Panics
    /// If something else arrives, or nothing.
    #[track_caller]
    pub fn request(&self, sides: &[&TestEndpoint]) -> Event {
        let event = event(&self.eq, sides);
        assert_eq!((event.kind, event.fid), (EventKind::ConnReq, self.pep.fid()));
        assert!(event.info.as_ref().is_some_and(|info| info.handle.is_some()), "an info with its request");
        event
    }
}

/// Reads `eq` once: an event, an error, or nothing.
///
/// # Panics
/// If a read returns an unexpected error.
#[track_caller]
pub fn try_outcome(eq: &Arc<dyn EventQueue>) -> Option<Result<Event, EqErrorEntry>> {
    match eq.read() {
        Ok(event) => Some(Ok(event)),
        Err(error) if error.is_again() => None,
        Err(error) if error.errno() == Errno::EAVAIL => {
            Some(Err(eq.read_error().expect("FI_EAVAIL promised an error")))
        }
        Err(error) => panic!("reading an event queue: {error}"),
    }
}

/// The next event or error of `eq`, driving `sides`.
///
/// # Panics
/// If nothing arrives.
#[track_caller]
pub fn outcome(eq: &Arc<dyn EventQueue>, sides: &[&TestEndpoint]) -> Result<Event, EqErrorEntry> {
    wait::drive(sides, "an event", || try_outcome(eq))
}

/// The next event of `eq`, driving `sides`.
///
/// # Panics
/// If an error arrives, or nothing.
#[track_caller]
pub fn event(eq: &Arc<dyn EventQueue>, sides: &[&TestEndpoint]) -> Event {
    outcome(eq, sides).expect("an event")
}

/// The next event of `side`'s event queue.
///
/// # Panics
/// If it is not an event of `kind` about the endpoint.
#[track_caller]
pub fn event_of(side: &TestEndpoint, kind: EventKind, sides: &[&TestEndpoint]) -> Event {
    let event = event(side.eq(), sides);
    assert_eq!((event.kind, event.fid), (kind, side.ep.fid()), "{event:?}");
    event
}

/// Whether endpoints of this info are connected.
pub(crate) fn is_connected(info: &Info) -> bool {
    info.ep_attr.ep_type == EpType::Msg
}
