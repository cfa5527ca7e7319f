//! `--http`: metrics in Prometheus's text format, the flows as JSON, and a page that shows them.

mod server;
mod site;
mod status;
mod thumbnail;
mod view;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use super::log::say;
use crate::Result;
use server::REQUEST_TIMEOUT;
pub use server::Server;
pub use site::Api;
use site::{Listed, Pages};
pub use status::{Board, Counts, FlowState, FlowStatus};
pub use view::About;

/// The options of both roles.
#[derive(Debug, clap::Args)]
pub struct WebOptions {
    /// Serve a page at /, the flows as JSON at /flows and metrics for Prometheus at /metrics, such as at
    /// 127.0.0.1:7481. Nobody is asked for a name or a password: whoever reaches the address sees the flows
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<String>,
}

impl WebOptions {
    /// Whether a server is wanted.
    pub fn is_on(&self) -> bool {
        self.http.is_some()
    }

    /// Listens, if a server is wanted. Returns where, too.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for an address where nobody can listen.
    pub fn listen(&self) -> Result<Option<(TcpListener, SocketAddr)>> {
        self.http.as_deref().map(server::listen).transpose()
    }
}

/// Starts a server, which answers with pages of what roles report to `board`, of flows that `listed` returns, and with
/// what `api` says. It ends with the value that this returns.
///
/// # Errors
/// Those of [`Server::start`].
pub fn start(
    (listener, at): (TcpListener, SocketAddr),
    about: About,
    board: &Arc<Board>,
    listed: Listed,
    api: Option<Api>,
) -> Result<Server> {
    let pages = Pages::new(about, Arc::clone(board), listed, api);
    let server = Server::start(listener, REQUEST_TIMEOUT, pages)?;
    say(format_args!("shows its flows at http://{at}/"));
    Ok(server)
}
