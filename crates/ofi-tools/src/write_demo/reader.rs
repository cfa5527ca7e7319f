//! The reader: offers memory, requests pages, waits until they have arrived and compares them.

use std::time::{Duration, Instant};

use ofi::{Address, CompletionFlags, FiAddr, Node, Window};
use ofi_progress_bar::Progress;
use serde_json::json;

use super::figures::percentile;
use super::message::{Arrival, Connect, Fill};
use super::options::Options;
use super::steps::{Steps, Who, indices};
use super::threads::{self, Idle};
use super::{fill, nics};
use crate::failure::{Failure, Result};
use crate::output;

/// Number of regions offered, as in the C++ demo.
const REGIONS: usize = 2;
/// The announcement's data, and the first seed, as in the C++ demo.
const CONTEXT: u32 = 0x123;
const SEED: u64 = 0xabc_dabc_d987;
/// Time that a page may come after its announcement. Such a page reveals a writer that announces too early.
const LATE: Duration = Duration::from_secs(1);

/// The reader's results.
#[derive(Debug, Default)]
pub struct Seen {
    /// Pages compared.
    pages: u64,
    /// Requests whose pages came after their announcement.
    late: u64,
    /// Times from request to arrival, in nanoseconds.
    times: Vec<u32>,
}

/// Sends requests to the writer at `address`, and prints the results.
///
/// # Errors
/// The error of opening or of a request; `FI_EIO` for a wrong byte.
pub fn run(options: &Options, address: &str, steps: Steps) -> Result<()> {
    let mut seen = ask(options, address, steps)?;
    seen.times.sort_unstable();
    let [p50, p99] = [50, 99].map(|cent| percentile(&seen.times, cent));
    let Seen { pages, late, times } = &seen;
    if options.json {
        let request_us = json!({ "p50": p50, "p99": p99 });
        let value =
            json!({ "pages": pages, "requests": times.len(), "late": late, "request_us": request_us });
        return output::print(&format!("{value}\n"));
    }
    if *late > 0 {
        let text = "the writer announced pages before they were there";
        output::tell(&format!("fi_write_demo: {text}, {late} times"));
    }
    let requests = times.len();
    output::print(&format!(
        "data is right: {pages} pages in {requests} requests; a request takes {p50:.1} us (p50), {p99:.1} us (p99)\n"
    ))
}

/// As [`run`], without printing.
///
/// # Errors
/// As `run`.
pub fn ask(options: &Options, address: &str, steps: Steps) -> Result<Seen> {
    let addresses = nics::parse(address)?;
    if addresses.len() as u64 != options.nics {
        let text = format!("the writer has {} NICs, this end {}", addresses.len(), options.nics);
        return Err(Failure::Usage(format!("{text}; leave --nics out here, or give both the same")));
    }
    let format = addresses.first().map(|address| address.format());
    let nodes = nics::open(&options.provider, options.nics, steps)?;
    let own = nodes.first().and_then(|node| node.name().ok()).map(|name| name.format());
    if format != own {
        let text = "the writer's address is not one of this provider";
        return Err(Failure::Usage(format!("{text}; give both the same --provider")));
    }
    let bar = bar(options);
    let all = threads::share_out(options, nodes, |thread, nodes| {
        let threads = (options.threads as usize).min(addresses.len());
        let addresses = addresses.iter().enumerate().skip(thread).step_by(threads);
        let desks = nodes.into_iter().zip(addresses).map(|(node, (nic, address))| {
            Desk::new(options, node, address, (steps, Who { role: "reader", nic }))
        });
        ask_all(options, desks.collect::<Result<Vec<_>>>()?, &bar)
    })?;
    drop(bar);
    let mut seen = Seen::default();
    for part in all {
        seen.pages += part.pages;
        seen.late += part.late;
        seen.times.extend(part.times);
    }
    Ok(seen)
}

fn bar(options: &Options) -> Progress {
    let per_request = match options.reading.arrival {
        Arrival::Counted => {
            options.pages.saturating_mul(REGIONS as u64).saturating_mul(options.reading.rounds)
        }
        Arrival::Last => 1,
    };
    let all = per_request.saturating_mul(options.reading.repeat).saturating_mul(options.nics);
    Progress::rate(false, all, "arrivals")
}

/// Makes the requests of all desks at the same time.
fn ask_all(options: &Options, mut desks: Vec<Desk<'_>>, bar: &Progress) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut idle = Idle::watchful();
    loop {
        let (mut busy, mut open) = (false, false);
        for desk in &mut desks {
            busy |= desk.step(&mut seen, bar)?;
            open |= desk.asked < options.reading.repeat || desk.expected > 0;
        }
        if !open {
            return Ok(seen);
        }
        if idle.after(busy) > options.patience() {
            let doing = "waiting for pages".to_string();
            return Err(Failure::Silent { doing, limit: options.patience() });
        }
    }
}

/// One NIC, and the writer's NIC that serves it.
struct Desk<'a> {
    options: &'a Options,
    node: Node,
    writer: FiAddr,
    windows: Vec<Window<Vec<u8>>>,
    /// Sends in flight.
    sending: usize,
    asked: u64,
    /// Outstanding announcements of the latest request.
    expected: u64,
    request: Option<(Fill, Instant)>,
    display: (Steps, Who),
}

impl<'a> Desk<'a> {
    fn new(options: &'a Options, node: Node, writer: &Address, display: (Steps, Who)) -> Result<Self> {
        let places = options.reading.region / options.page_size;
        if places < options.pages || places > u64::from(u32::MAX) {
            let (pages, size, region) = (options.pages, options.page_size, options.reading.region);
            let text = format!("{pages} pages of {size} bytes do not fit into a region of {region}");
            return Err(Failure::Usage(format!("{text}; give fewer or smaller ones, or a larger --region")));
        }
        let (steps, who) = display;
        let writer = node.insert(writer).map_err(Failure::stack("the writer's address"))?;
        let window = |nth| {
            let window = node.domain().window(vec![0; options.reading.region as usize], nics::RIGHTS);
            let window = window.map_err(|rejected| Failure::stack("registering a region")(rejected.error))?;
            steps.step(who, || {
                let at = window.remote();
                format!("registered region {nth}: {} bytes at {:#x}, key {:#x}", at.len, at.base, at.key)
            });
            Ok(window)
        };
        let windows = (0..REGIONS).map(window).collect::<Result<Vec<_>>>()?;
        let mut desk = Self {
            options,
            node,
            writer,
            windows,
            sending: 0,
            asked: 0,
            expected: 0,
            request: None,
            display,
        };
        let address = desk.node.name().map_err(Failure::stack("asking for an address"))?.bytes().to_vec();
        let regions = desk.windows.iter().map(Window::remote).collect();
        desk.send(Connect { address, regions }.encode()?)?;
        steps.step(who, || "told the writer its address and regions".to_string());
        Ok(desk)
    }

    fn send(&mut self, mut bytes: Vec<u8>) -> Result<()> {
        let until = Instant::now() + self.options.patience();
        loop {
            match self.node.send(bytes, self.writer) {
                Ok(_) => {
                    self.sending += 1;
                    return Ok(());
                }
                Err(rejected) if rejected.is_again() && Instant::now() < until => bytes = rejected.buffer,
                Err(rejected) => return Err(Failure::stack("sending a request")(rejected.error)),
            }
            self.poll(&Progress::hidden())?;
        }
    }

    /// Sends a request if none is outstanding, and checks for arrivals. Returns whether anything happened.
    fn step(&mut self, seen: &mut Seen, bar: &Progress) -> Result<bool> {
        if self.expected == 0 && self.asked < self.options.reading.repeat {
            self.ask()?;
        }
        let busy = self.poll(bar)?;
        if self.expected == 0
            && let Some((request, since)) = self.request.take()
        {
            seen.times.push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
            let (steps, who) = self.display;
            steps.step(who, || {
                format!("request {}: all is announced after {:?}", self.asked, since.elapsed())
            });
            seen.late += u64::from(self.compare(&request)?);
            seen.pages += (request.pages.len() * REGIONS) as u64;
        }
        Ok(busy)
    }

    fn ask(&mut self) -> Result<()> {
        let reading = &self.options.reading;
        // Each request has its own seeds, so that data of an earlier one does not pass as correct.
        let seed = SEED.wrapping_add(self.asked.wrapping_mul(1000));
        let places = (reading.region / self.options.page_size) as u32;
        let pages = fill::sample(seed, self.options.pages as usize, places);
        let (page_size, rounds, arrival) = (self.options.page_size, reading.rounds, reading.arrival);
        let request = Fill { context: CONTEXT, seed, page_size, pages, rounds, arrival };
        let bytes = request.encode()?;
        self.expected = match arrival {
            Arrival::Counted => self.options.pages.saturating_mul(REGIONS as u64).saturating_mul(rounds),
            Arrival::Last => 1,
        };
        self.asked += 1;
        let (steps, who) = self.display;
        steps.step(who, || {
            let (number, all, pages) = (self.asked, reading.repeat, indices(&request.pages));
            format!("request {number} of {all}: seed {seed:#x}, pages of {page_size} bytes in each region: {pages}")
        });
        self.request = Some((request, Instant::now()));
        self.send(bytes)
    }

    fn poll(&mut self, bar: &Progress) -> Result<bool> {
        let mut busy = false;
        while let Some(completion) = self.node.poll().map_err(Failure::stack("reading the queue"))? {
            busy = true;
            let (flags, data) = (completion.flags, completion.data);
            completion.into_result().map_err(|error| Failure::stack("a request")(error.into()))?;
            if flags.contains(CompletionFlags::REMOTE_WRITE) {
                if data != Some(u64::from(CONTEXT)) || self.expected == 0 {
                    return Err(Failure::Peer(format!(
                        "an announcement with data {data:?} that was not requested"
                    )));
                }
                self.expected -= 1;
                let (steps, who) = self.display;
                steps.page(who, || format!("an announcement has arrived, {} are left", self.expected));
                bar.advance(1);
            } else {
                self.sending = self.sending.saturating_sub(1);
            }
        }
        Ok(busy)
    }

    /// Compares all pages of `request`. Returns whether any came after its announcement.
    fn compare(&self, request: &Fill) -> Result<bool> {
        let size = request.page_size as usize;
        let until = Instant::now() + LATE;
        let mut late = false;
        let mut found = vec![0; size];
        for (nth, window) in self.windows.iter().enumerate() {
            let wanted = fill::bytes(fill::seed_of(request.seed, nth), size * request.pages.len());
            for (wanted, &page) in wanted.chunks(size).zip(&request.pages) {
                loop {
                    let read = window.read_into(page as usize * size, &mut found);
                    read.map_err(Failure::stack("reading a region"))?;
                    let Some(at) = found.iter().zip(wanted).position(|(found, wanted)| found != wanted)
                    else {
                        break;
                    };
                    if Instant::now() > until {
                        return Err(Failure::Data(format!("byte {at} of page {page} of region {nth}")));
                    }
                    late = true;
                    self.node.poll().map_err(Failure::stack("reading the queue"))?;
                }
                let (steps, who) = self.display;
                steps.page(who, || format!("page {page} of region {nth} is right"));
            }
        }
        let (steps, who) = self.display;
        steps.step(who, || {
            format!("request {}: all pages are right: {}", self.asked, indices(&request.pages))
        });
        Ok(late)
    }
}
