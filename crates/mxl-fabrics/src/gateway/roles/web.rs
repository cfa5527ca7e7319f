//! `--http`: metrics in Prometheus's text format, the flows as JSON, and a page that shows them.

mod message;
mod server;
mod site;
mod status;
mod thumbnail;
mod view;

use std::sync::Arc;

use super::log::say;
use crate::Result;
use server::{REQUEST_TIMEOUT, Server};
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

    /// Starts the server, if one is wanted. It ends with the value that this returns.
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub fn start(&self, about: About, board: &Arc<Board>, listed: Listed) -> Result<Option<Server>> {
        let Some(at) = &self.http else { return Ok(None) };
        let pages = Pages::new(about, Arc::clone(board), listed);
        let server = Server::start(at, REQUEST_TIMEOUT, pages)?;
        say(format_args!("shows its flows at http://{}/", server.address()));
        Ok(Some(server))
    }
}
