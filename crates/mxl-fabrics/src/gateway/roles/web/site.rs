//! What the server answers: the page, the flows as JSON, metrics, and thumbnails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mxl::Uuid;

use super::server::Site;
use super::status::{Board, FlowState, FlowStatus};
use super::thumbnail::Thumbnails;
use super::view::{self, About, FlowView};
use crate::gateway::http::{HttpRequest, HttpResponse};

/// Interval at which the flows are looked at for clients.
const FRESH: Duration = Duration::from_millis(200);
/// Nothing is loaded from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const PAGE: &str = include_str!("page.html");

/// The flows that may be shown although no role has reported them.
pub type Listed = Box<dyn Fn() -> Vec<Uuid> + Send>;

/// What answers requests to other paths; `None` for those that it does not know.
pub type Api = Box<dyn FnMut(&HttpRequest) -> Option<HttpResponse> + Send>;

/// The gateway's pages.
pub struct Pages {
    about: About,
    board: Arc<Board>,
    listed: Listed,
    api: Option<Api>,
    thumbnails: Thumbnails,
    /// The last look at the flows.
    seen: Option<(Instant, Vec<FlowView>)>,
}

impl Pages {
    /// Pages of what roles report to `board`, and of flows that `listed` returns; and what `api` says.
    pub fn new(about: About, board: Arc<Board>, listed: Listed, api: Option<Api>) -> Self {
        Self { about, board, listed, api, thumbnails: Thumbnails::default(), seen: None }
    }

    /// The flows, as they were within the last fifth of a second.
    fn flows(&mut self) -> &[FlowView] {
        let former = self.seen.take().filter(|(when, _)| when.elapsed() < FRESH);
        let (_, flows) = self.seen.insert(former.unwrap_or_else(|| {
            let mut reported = self.board.flows();
            for id in (self.listed)() {
                reported.entry(id).or_insert_with(|| FlowStatus::offered(id));
            }
            let view = |status| FlowView::new(&self.about.domain, status);
            (Instant::now(), reported.into_values().map(view).collect())
        }));
        flows
    }

    fn thumbnail(&mut self, id: Uuid) -> HttpResponse {
        // Flows that are not offered look like those that do not exist.
        let is_known = (self.listed)().contains(&id)
            || self.board.flows().get(&id).is_some_and(|flow| flow.state != FlowState::Offered);
        let picture =
            if is_known { self.thumbnails.png(&self.about.domain, id) } else { Err("no such flow".into()) };
        match picture {
            Ok(png) => HttpResponse::new(200, "image/png", png),
            Err(why) => HttpResponse::error(404, &why),
        }
    }
}

impl Site for Pages {
    fn answer(&mut self, request: &HttpRequest) -> HttpResponse {
        if let Some(response) = self.api.as_mut().and_then(|api| api(request)) {
            return response;
        }
        let about = self.about.clone();
        let path = request.path.as_str();
        let thumbnail = path.strip_prefix("/thumbnails/").and_then(|name| name.strip_suffix(".png"));
        let thumbnail = thumbnail.and_then(|id| Uuid::try_parse(id).ok());
        if !["/", "/flows", "/metrics"].contains(&path) && thumbnail.is_none() {
            return HttpResponse::error(404, "there are /, /flows, /metrics and /thumbnails/ID.png");
        }
        if !["GET", "HEAD"].contains(&request.method.as_str()) {
            return HttpResponse::error(405, "only GET and HEAD").with("Allow", "GET, HEAD");
        }
        match (path, thumbnail) {
            (_, Some(id)) => self.thumbnail(id),
            ("/flows", _) => {
                HttpResponse::new(200, "application/json", view::to_json(&about, self.flows()).to_string())
            }
            ("/metrics", _) => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                HttpResponse::new(200, kind, view::to_metrics(&about, self.flows()))
            }
            _ => HttpResponse::new(200, "text/html; charset=utf-8", PAGE)
                .with("Content-Security-Policy", POLICY),
        }
    }
}
