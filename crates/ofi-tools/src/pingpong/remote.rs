//! A server and a client that users start, with C's table on both sides.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde_json::json;

use super::jobs;
use super::link::{Link, SILENCE_TIMEOUT};
use super::measure::{Bench, Budget};
use super::message::{Job, Message, Task};
use super::node::Node;
use super::options::{DEFAULT_PORT, Options};
use super::sides::{self, telling};
use super::table::{self, Exchange};
use super::{setup, sizes, sys};
use crate::failure::{Failure, Result};
use crate::output;

/// The default number of messages each way (`-I`).
const ITERATIONS: u64 = 1000;

/// Messages each way before the clock starts.
const WARM_UP: u64 = 20;

/// Time for which a client retries while no server listens, because the server may be starting.
const ARRIVAL: Duration = Duration::from_secs(2);

/// Waits for one client without a time limit, and serves it.
///
/// # Errors
/// Any error of either side.
pub fn server(options: &Options) -> Result<()> {
    let any: IpAddr = if options.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let port = options.source_port.unwrap_or(DEFAULT_PORT);
    let listener = TcpListener::bind((any, port)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            Failure::system(format!("listening on port {port} (choose another with -B)"), error)
        }
        _ => Failure::system(format!("listening on port {port}"), error),
    })?;
    // With port 0, this is where users learn the actual port.
    let port = listener.local_addr().map_or(port, |address| address.port());
    output::tell(&format!(
        "waiting for a client on port {port}; start it with: fi_pingpong -P {port} <this host>"
    ));
    let (stream, from) = listener.accept().map_err(|error| Failure::system("waiting for a client", error))?;
    drop(listener);
    if options.verbose {
        output::tell(&format!("client at {from}"));
    }
    let mut link = Link::tcp(stream)?;
    let result = serve(options, &mut link);
    telling(&mut link, result)
}

fn serve(options: &Options, link: &mut Link) -> Result<()> {
    let node = sides::open_server(link, &setup(options), options.verbose)?;
    let mut report = Report::new(options);
    sides::serve(
        link,
        &node,
        |job, took| if job.shown { report.row(job.size, job.total(), took) } else { Ok(()) },
    )?;
    if options.stats {
        node.tell_counters();
    }
    report.end(&node)
}

/// Measures round trips against the server at `address`.
///
/// # Errors
/// Any error of either side.
pub fn client(options: &Options, address: &str) -> Result<()> {
    let stream = connect(options, address)?;
    if options.verbose {
        output::tell(&format!("connected to {address}"));
    }
    let mut link = Link::tcp(stream)?;
    let result = lead(options, &mut link);
    telling(&mut link, result)
}

fn lead(options: &Options, link: &mut Link) -> Result<()> {
    let node = sides::open_client(link, &setup(options), options.verbose)?;
    let sizes = sizes(options, &node)?;
    let rounds = options.iterations.unwrap_or(ITERATIONS);
    let mut report = Report::new(options);
    for size in sizes {
        let warm_up = Job {
            task: Task::PingPong,
            size,
            batches: 1,
            rounds: WARM_UP.min(rounds),
            window: 1,
            memory: options.memory,
            shown: false,
        };
        if options.check {
            let mut bench = Bench { node: &node, link, budget: Budget::quick(), iterations: None };
            bench.check(size, options.memory)?;
        }
        jobs::lead(&node, link, &warm_up)?;
        let times = jobs::lead(&node, link, &Job { rounds, shown: true, ..warm_up })?;
        report.row(size, rounds, times.iter().sum())?;
    }
    link.send(&Message::Bye)?;
    if options.stats {
        node.tell_counters();
    }
    report.end(&node)
}

/// The requested sizes, up to the endpoint's limit.
fn sizes(options: &Options, node: &Node) -> Result<Vec<usize>> {
    let limit = node.info().ep_attr.max_msg_size;
    let chosen = options.sizes.as_ref().or(options.size.as_ref());
    let sizes = match chosen {
        Some(choice) => choice.up_to(limit),
        None => sizes::DEFAULT_OF_C.into_iter().filter(|&size| size <= limit).collect(),
    };
    if sizes.is_empty() {
        return Err(Failure::Usage(format!(
            "-S: wanted at most {limit} bytes, this endpoint's longest message"
        )));
    }
    Ok(sizes)
}

fn connect(options: &Options, host: &str) -> Result<TcpStream> {
    let port = options.dest_port.unwrap_or(DEFAULT_PORT);
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| Failure::system(format!("looking up {host:?}"), error))?;
    let family: Vec<SocketAddr> = found.filter(|address| address.is_ipv6() == options.ipv6).collect();
    let since = Instant::now();
    let mut last = io::Error::new(
        io::ErrorKind::NotFound,
        format!("{host:?} has no IPv{} address", if options.ipv6 { 6 } else { 4 }),
    );
    loop {
        for &address in &family {
            let connected = match options.source_port {
                None | Some(0) => TcpStream::connect_timeout(&address, SILENCE_TIMEOUT),
                Some(source) => sys::connect_from(source, address, SILENCE_TIMEOUT),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        if last.kind() != io::ErrorKind::ConnectionRefused || since.elapsed() > ARRIVAL {
            let advice = "is the server started, and its port given with -P?";
            return Err(Failure::system(format!("connecting to {host}, port {port} ({advice})"), last));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// C's table, or the same in JSON.
struct Report {
    json: bool,
    rows: Vec<Exchange>,
}

impl Report {
    fn new(options: &Options) -> Report {
        Report { json: options.json, rows: Vec::new() }
    }

    fn row(&mut self, size: usize, count: u64, time: Duration) -> Result<()> {
        let first = self.rows.is_empty();
        self.rows.push(Exchange::new(size, count, time));
        if self.json {
            return Ok(());
        }
        let head = if first { table::head_of_c() } else { String::new() };
        output::print(&(head + &table::row_of_c(size, count, time)))
    }

    fn end(&self, node: &Node) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let (attr, domain) = (&node.info().fabric_attr, &node.info().domain_attr);
        output::print_json(&json!({
            "fi_pingpong": env!("CARGO_PKG_VERSION"),
            "provider": attr.prov_name,
            "domain": domain.name,
            "rows": self.rows,
        }))
    }
}
