//! A request being served: the next page to write, and the completed writes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ofi::{Completion, FiAddr, Node, Op, Registered, RemoteWindow, RmaMsg};

use super::fill;
use super::message::{Arrival, Fill};
use super::options::{OnFull, Writing};
use super::steps::{Steps, Who};
use crate::failure::{Failure, Result};

/// A page that is ready to be written.
type Page = Registered<Vec<u8>>;

/// The writes of one request.
pub struct Job {
    peer: FiAddr,
    regions: Vec<RemoteWindow>,
    request: Fill,
    /// The pages of all regions, region by region; `None` while a page is in flight.
    pages: Vec<Option<Page>>,
    under_way: HashMap<Op, (usize, Instant)>,
    /// Remaining writes of the untimed round.
    warming: u64,
    posted: u64,
    done: u64,
    began: Option<Instant>,
    /// Times from post to completion.
    times: Vec<u32>,
    display: (Steps, Who),
}

/// The figures of a served request.
#[derive(Debug, Default)]
pub struct Served {
    /// Number of writes.
    pub writes: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Times from post to completion, in nanoseconds.
    pub times: Vec<u32>,
    /// First post and last completion.
    pub span: Option<(Instant, Instant)>,
}

impl Job {
    /// Fills the pages that `request` asks for.
    ///
    /// # Errors
    /// The request does not fit the regions, or the error of a registration.
    pub fn new(
        node: &Node,
        peer: FiAddr,
        regions: Vec<RemoteWindow>,
        request: Fill,
        warm_up: bool,
        display: (Steps, Who),
    ) -> Result<Self> {
        request.check(&regions)?;
        let too_much = || Failure::Peer("a request for more than 1 GiB of pages".to_string());
        let len = request.region_bytes().filter(|&len| len <= 1 << 30).ok_or_else(too_much)? as usize;
        let mut pages = Vec::new();
        for nth in 0..regions.len() {
            let bytes = fill::bytes(fill::seed_of(request.seed, nth), len);
            for page in bytes.chunks(request.page_size as usize) {
                let page = node.domain().register(page.to_vec());
                pages.push(Some(
                    page.map_err(|rejected| Failure::stack("registering a page")(rejected.error))?,
                ));
            }
        }
        let warming = if warm_up { pages.len() as u64 } else { 0 };
        let (under_way, times) = (HashMap::new(), Vec::new());
        Ok(Self {
            peer,
            regions,
            request,
            pages,
            under_way,
            warming,
            posted: 0,
            done: 0,
            began: None,
            times,
            display,
        })
    }

    fn all(&self) -> u64 {
        (self.pages.len() as u64).saturating_mul(self.request.rounds)
    }

    /// Posts up to `writing.batch` writes, or as many as there is room for if it is lazy. Returns their number.
    ///
    /// # Errors
    /// The error of a post.
    pub fn post(&mut self, node: &Node, writing: &Writing) -> Result<u64> {
        let most = if writing.lazy { u64::MAX } else { writing.batch };
        let mut posted = 0;
        let mut naps = 0;
        while posted < most && self.may_post() {
            match self.post_next(node) {
                Ok(true) => posted += 1,
                Ok(false) => break,
                Err(error)
                    if super::nics::is_again(&error) && writing.on_full == OnFull::Sleep && naps < 10 =>
                {
                    std::thread::sleep(Duration::from_millis(1 << naps));
                    naps += 1;
                    // Most providers make room only when they are polled.
                    self.poll(node)?;
                }
                Err(error) if super::nics::is_again(&error) && writing.on_full == OnFull::Queue => break,
                Err(error) => return Err(Failure::stack("writing a page")(error)),
            }
        }
        Ok(posted)
    }

    fn may_post(&self) -> bool {
        if self.warming > 0 {
            return true;
        }
        let settled = self.under_way.is_empty();
        match self.posted {
            // The clock starts after the untimed writes have arrived.
            0 => settled,
            posted if posted >= self.all() => false,
            // The last write announces the others.
            posted if posted + 1 == self.all() => self.request.arrival == Arrival::Counted || settled,
            _ => true,
        }
    }

    /// `false` if the page is still in flight from an earlier round.
    fn post_next(&mut self, node: &Node) -> ofi::Result<bool> {
        let warm = self.warming > 0;
        let nth = if warm { self.warming - 1 } else { self.posted };
        let place = (nth % self.pages.len() as u64) as usize;
        let Some(page) = self.pages[place].take() else { return Ok(false) };
        let region = place / self.request.pages.len();
        let index = u64::from(self.request.pages[place % self.request.pages.len()]);
        let start = index * self.request.page_size;
        let remote = self.regions[region].slice(start..start + self.request.page_size)?;
        let mut write = RmaMsg::new(page, self.peer, remote).flags(node.info().tx_attr.op_flags);
        let tells = self.request.arrival == Arrival::Counted || nth + 1 == self.all();
        if tells && !warm {
            write = write.data(self.request.context.into());
        }
        let now = Instant::now();
        match node.write_message(write) {
            Ok(op) => {
                let (steps, who) = self.display;
                steps.page(who, || {
                    let round = nth / self.pages.len() as u64;
                    let kind = if warm { "warm-up".to_string() } else { format!("round {round}") };
                    let tells = if tells && !warm { ", with the announcement" } else { "" };
                    format!("posted page {index} of region {region}, {kind}{tells}")
                });
                self.under_way.insert(op, (place, now));
                if warm {
                    self.warming -= 1;
                } else {
                    self.began.get_or_insert(now);
                    self.posted += 1;
                }
                Ok(true)
            }
            Err(rejected) => {
                self.pages[place] = Some(rejected.buffer);
                Err(rejected.error)
            }
        }
    }

    fn poll(&mut self, node: &Node) -> Result<()> {
        while let Some(completion) = node.poll().map_err(Failure::stack("reading the queue"))? {
            self.complete(completion)?;
        }
        Ok(())
    }

    /// Processes a completion. Returns whether it was that of a timed write.
    ///
    /// # Errors
    /// The write failed.
    pub fn complete(&mut self, mut completion: Completion) -> Result<bool> {
        let Some((place, posted)) = completion.op.and_then(|op| self.under_way.remove(&op)) else {
            return Ok(false);
        };
        self.pages[place] = completion.take_buffer();
        let (steps, who) = self.display;
        steps.page(who, || {
            let (region, page) = (place / self.request.pages.len(), place % self.request.pages.len());
            let outcome = if completion.result.is_ok() { "is written" } else { "has failed" };
            format!("page {} of region {region} {outcome}", self.request.pages[page])
        });
        completion.into_result().map_err(|error| Failure::stack("writing a page")(error.into()))?;
        let timed = self.began.is_some();
        if timed {
            self.done += 1;
            self.times.push(u32::try_from(posted.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        Ok(timed)
    }

    /// The figures, if all writes have ended.
    pub fn served(&mut self) -> Option<Served> {
        if self.done < self.all() {
            return None;
        }
        let bytes = self.done.saturating_mul(self.request.page_size);
        let span = self.began.map(|began| (began, Instant::now()));
        Some(Served { writes: self.done, bytes, times: std::mem::take(&mut self.times), span })
    }

    /// The requesting peer.
    pub fn peer(&self) -> FiAddr {
        self.peer
    }
}
