//! `--nmos`: the gateway as an NMOS Node, whose APIs are served at the address of `--http`.

#[cfg(feature = "nmos")]
mod kept;

use std::net::SocketAddr;

use mxl::{Domain, Uuid};

use super::web::Api;
#[cfg(not(feature = "nmos"))]
use crate::Error;
use crate::Result;

/// The options of both roles.
#[derive(Debug, clap::Args)]
pub struct NmosOptions {
    /// Register at this NMOS registry (IS-04), http://HOST:PORT, or auto: those that DNS-SD finds; repeatable: the next
    /// one is used if one fails. The Node's APIs are at the address of --http, and whoever reaches it may connect
    /// receivers and disable senders
    #[arg(long, value_name = "URL", requires = "http")]
    nmos: Vec<String>,
    /// The Node's name for people [default: mxl-gateway and the host's name]
    #[arg(long, value_name = "TEXT", requires = "nmos")]
    nmos_label: Option<String>,
}

/// What the role does for NMOS. Each is called by the server's thread or by the Node's, and waits for nothing.
pub struct Hooks {
    /// The flows that have senders; `None` if the domain cannot be read now.
    pub flows: Box<dyn Fn() -> Option<Vec<Uuid>> + Send>,
    /// A receiver receives this MXL flow from now on, or none.
    pub receive: Box<dyn FnMut(Uuid, Option<Uuid>) -> std::result::Result<(), String> + Send>,
    /// An MXL flow is offered from now on, or not.
    pub send: Box<dyn FnMut(Uuid, bool) -> std::result::Result<(), String> + Send>,
}

/// What of a role the Node describes.
pub struct Described {
    /// The role's name.
    pub role: &'static str,
    /// The domain.
    pub domain: Domain,
    /// Where the HTTP server listens.
    pub at: SocketAddr,
    /// Where mirrors ask for the flows, if they can.
    pub gateway: Option<SocketAddr>,
    /// Number of receivers of each medium.
    pub receivers: u32,
}

/// A registered Node. It ends with this value.
#[cfg(feature = "nmos")]
pub type Registered = kept::Kept;
/// A registered Node, which there is none of.
#[cfg(not(feature = "nmos"))]
pub type Registered = ();

impl NmosOptions {
    /// Whether a Node is wanted.
    pub fn is_on(&self) -> bool {
        !self.nmos.is_empty()
    }

    /// Starts the Node, if one is wanted. Returns what answers requests to its APIs too.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that is wrong, if the system cannot start threads, and in a program that was
    /// built without NMOS.
    #[cfg(feature = "nmos")]
    pub fn start(&self, of: Described, hooks: Hooks) -> Result<Option<(Registered, Api)>> {
        if !self.is_on() {
            return Ok(None);
        }
        kept::Kept::start(&self.nmos, self.nmos_label.as_deref(), of, hooks).map(Some)
    }

    /// Refuses the options: the program was built without NMOS.
    ///
    /// # Errors
    /// [`Error::Argument`] if a Node is wanted.
    #[cfg(not(feature = "nmos"))]
    pub fn start(&self, of: Described, hooks: Hooks) -> Result<Option<(Registered, Api)>> {
        let Described { role, domain, at, gateway, receivers } = of;
        let Hooks { flows, receive, send } = hooks;
        drop((flows, receive, send));
        if !self.is_on() {
            return Ok(None);
        }
        let label = self.nmos_label.as_deref().unwrap_or(role);
        let domain = domain.path().display();
        tracing::debug!(target: "mxl::fabrics", label, %at, ?gateway, receivers, %domain, "no NMOS");
        Err(Error::Argument("--nmos: this program was built without feature nmos of mxl-fabrics".into()))
    }
}
