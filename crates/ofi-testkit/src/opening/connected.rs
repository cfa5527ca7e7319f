//! Opening connected endpoints (`FI_EP_MSG`): an accepting one, and pairs of what a case opens.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use ofi::raw::{Endpoint, EventKind, EventQueue, Result};

use super::Opening;
use crate::connection::{Listener, event, event_of};
use crate::side::TestEndpoint;

/// Connects two endpoints through a passive one. Returns the accepting side.
///
/// # Errors
/// Those of the calls involved.
///
/// # Panics
/// If the connection is not established.
pub fn connect(caller: &TestEndpoint, accepting: Opening) -> Result<TestEndpoint> {
    let listener = Listener::open(&accepting.first_info()?)?;
    caller.ep.connect(&listener.pep.name()?, b"hello")?;
    let request = listener.request(&[]);
    let side = accepting.info(*request.info.expect("checked")).open_disabled()?;
    side.ep.accept(b"welcome")?;
    event_of(caller, EventKind::Connected, &[&side]);
    event_of(&side, EventKind::Connected, &[caller]);
    Ok(side)
}

type Waiting = (Weak<dyn Endpoint>, Arc<dyn EventQueue>);

thread_local! {
    /// The endpoint of this test that has no peer yet. Cases open sides and expect them to reach each other.
    static ALONE: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// Opens a connected endpoint: every second one of a test is connected to the previous one.
pub(crate) fn open_paired(opening: Opening) -> Result<TestEndpoint> {
    let alone = ALONE.with(|alone| alone.borrow_mut().take());
    if let Some((ep, eq)) = alone.and_then(|(ep, eq)| Some((ep.upgrade()?, eq))) {
        let listener = Listener::open(&opening.first_info()?)?;
        ep.connect(&listener.pep.name()?, &[])?;
        let info = *listener.request(&[]).info.expect("checked");
        let side = opening.info(info).open_disabled()?;
        side.ep.accept(&[])?;
        for eq in [&eq, side.eq()] {
            assert_eq!(event(eq, &[]).kind, EventKind::Connected);
        }
        return Ok(side);
    }
    let side = opening.open_disabled()?;
    side.ep.enable()?;
    let waiting = (Arc::downgrade(&side.ep), Arc::clone(side.eq()));
    ALONE.with(|alone| *alone.borrow_mut() = Some(waiting));
    Ok(side)
}
