//! Address handles. A device may take long to make one or to destroy it (a system call, a command to its firmware, the
//! resolution of a neighbour), so a thread does both, without the endpoint's lock. Until a peer has its handle,
//! datagrams to it wait in slots, of which others keep some.

use std::os::fd::RawFd;
use std::sync::Arc;

use ofi_api::Result;
use ofi_core::background::Background;

use crate::rc;
use crate::rc::ud::{UdRoute, UdRoutes};

/// A port that a route leads to: its GID, if there is one, and its LID.
pub type PortName = (Option<[u8; 16]>, u16);

/// A route that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    /// Distinguishes it from all others of the endpoint.
    pub number: u64,
    /// Its destination.
    pub to: PortName,
}

/// Makes the routes of an endpoint.
pub struct RouteMaker {
    routes: Arc<dyn UdRoutes>,
    /// `None` if the device makes routes at once.
    background: Option<Background<Making, rc::Result<UdRoute>>>,
    last: u64,
}

/// The result of [`RouteMaker::begin`].
pub enum Begun {
    /// The device has answered.
    Made(rc::Result<UdRoute>),
    /// [`RouteMaker::take`] returns the answer.
    Making(Making),
}

impl RouteMaker {
    /// A maker of these routes.
    ///
    /// # Errors
    /// `FI_EMFILE`.
    pub fn new(routes: Arc<dyn UdRoutes>) -> Result<Self> {
        let background = if routes.may_block() { Some(Background::new()?) } else { None };
        Ok(Self { routes, background, last: 0 })
    }

    /// Begins to make a route.
    pub fn begin(&mut self, to: PortName) -> Begun {
        let Some(background) = &mut self.background else {
            return Begun::Made(self.routes.route(to.0, to.1));
        };
        self.last += 1;
        let making = Making { number: self.last, to };
        let routes = Arc::clone(&self.routes);
        background.begin(making, move || routes.route(to.0, to.1));
        Begun::Making(making)
    }

    /// Drops a route, before routes are made that are begun later.
    pub fn discard(&self, route: UdRoute) {
        if let Some(background) = &self.background {
            background.discard(route);
        }
    }

    /// Whether routes are being made, or wait to be taken.
    #[inline]
    pub fn is_owed(&self) -> bool {
        self.background.as_ref().is_some_and(Background::is_owed)
    }

    /// Takes the routes that were made.
    pub fn take(&mut self) -> Vec<(Making, rc::Result<UdRoute>)> {
        self.background.as_mut().map(Background::take).unwrap_or_default()
    }

    /// The descriptor that is readable while routes wait to be taken, if the device does not make them at once.
    pub fn fd(&self) -> Option<RawFd> {
        self.background.as_ref().map(Background::fd)
    }
}
