//! The name server of this host, unless another process runs it: a thread that answers queries.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Address, Result};
use ofi_core::sys::{self, WaitSet};

use super::wire::{self, ANY, MAX_MESSAGE_LEN, NameRequest, Parsed};

/// Maximum number of names.
const MAX_NAMES: usize = 1 << 16;
/// Maximum number of connections whose request has not arrived. Above it, the oldest is closed.
const MAX_PENDING_CLIENTS: usize = 64;
/// Timeout for a request to arrive on a new connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The names of this host's endpoints by their services.
#[derive(Default)]
struct Names(BTreeMap<u32, Address>);

impl Names {
    /// The latest endpoint gets the service, because an earlier one may have ended without removing its name.
    fn add(&mut self, service: u32, name: Address) {
        if self.0.len() < MAX_NAMES || self.0.contains_key(&service) {
            self.0.insert(service, name);
        }
    }

    fn remove(&mut self, service: u32, name: &Address) {
        if self.0.get(&service) == Some(name) {
            self.0.remove(&service);
        }
    }

    fn find(&self, service: u32) -> Option<(u32, &Address)> {
        let found = if service == ANY { self.0.iter().next() } else { self.0.get_key_value(&service) };
        found.map(|(service, name)| (*service, name))
    }
}

/// A connection whose request is arriving.
struct Caller {
    stream: TcpStream,
    is_local: bool,
    arrived: Vec<u8>,
    until: Instant,
}

impl Caller {
    /// Reads what has arrived. Returns whether the connection is over.
    fn serve(&mut self, names: &Mutex<Names>) -> bool {
        let mut buffer = [0; MAX_MESSAGE_LEN];
        match self.stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(len) => self.arrived.extend(&buffer[..len]),
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
        let request = match NameRequest::parse(&self.arrived) {
            Parsed::Partial => return false,
            Parsed::Strange => return true,
            Parsed::Whole(request) => request,
        };
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            // An answer fits the send buffer of a new connection.
            NameRequest::Query(service) => drop(self.stream.write(&wire::answer(names.find(service)))),
            NameRequest::Add(service, name) if self.is_local => names.add(service, name),
            NameRequest::Remove(service, name) if self.is_local => names.remove(service, &name),
            NameRequest::Add(..) | NameRequest::Remove(..) => {
                tracing::warn!(target: "ofi::verbs::ep_ctrl", "another host's name was refused by the name server");
            }
        }
        true
    }
}

/// The name server of this host, in this process: its names, its port, and its thread.
pub struct Server {
    names: Arc<Mutex<Names>>,
    port: u16,
    /// A forked child has this object without its thread.
    process: u32,
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The server of this process.
static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());

impl Server {
    /// This process's server at `port`; `None` if another process has the port.
    ///
    /// # Errors
    /// `FI_EMFILE`; `FI_EAGAIN` if no thread can be started; the system's error for a port that cannot be used.
    pub fn get(port: u16) -> Result<Option<Arc<Self>>> {
        let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = server.upgrade() {
            let is_own = server.port == port && server.process == std::process::id();
            return Ok(is_own.then_some(server));
        }
        let listener = match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            listener => listener.map_err(|_| sys::os_error("opening the name server's port"))?,
        };
        listener.set_nonblocking(true).map_err(|_| sys::os_error("opening the name server's port"))?;
        let (names, stop) = (Arc::<Mutex<Names>>::default(), Arc::new(sys::eventfd()?));
        let set = WaitSet::new()?;
        set.add(stop.as_raw_fd())?;
        set.add(listener.as_raw_fd())?;
        let theirs = (Arc::clone(&names), Arc::clone(&stop));
        let builder = std::thread::Builder::new().name("ofi-names".into()).stack_size(256 << 10);
        let thread = builder
            .spawn(move || run(&set, &listener, &theirs.0, &theirs.1))
            .map_err(|_| sys::os_error("starting the name server's thread"))?;
        let fresh = Arc::new(Self { names, port, process: std::process::id(), stop, thread: Some(thread) });
        *server = Arc::downgrade(&fresh);
        Ok(Some(fresh))
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the name of an endpoint of this process.
    pub fn add(&self, service: u32, name: &Address) {
        self.names().add(service, name.clone());
    }

    /// Removes it.
    pub fn remove(&self, service: u32, name: &Address) {
        self.names().remove(service, name);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        sys::signal_eventfd(&*self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until `stop` is signalled.
fn run(set: &WaitSet, listener: &TcpListener, names: &Mutex<Names>, stop: &OwnedFd) {
    let mut callers: Vec<Caller> = Vec::new();
    while !sys::is_readable(stop.as_raw_fd()) {
        let until = callers.iter().map(|caller| caller.until).min();
        sys::wait_readable(&[set.fd()], until);
        loop {
            match listener.accept() {
                Ok((stream, from)) => {
                    // A descriptor leaves the set when it is closed.
                    if stream.set_nonblocking(true).is_err() || set.add(stream.as_raw_fd()).is_err() {
                        continue;
                    }
                    if callers.len() == MAX_PENDING_CLIENTS {
                        callers.remove(0);
                    }
                    let is_local = from.ip().is_loopback();
                    let until = Instant::now() + REQUEST_TIMEOUT;
                    callers.push(Caller { stream, is_local, arrived: Vec::new(), until });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    // Out of descriptors, the connection stays in the backlog, and the wait must not return at once for
                    // it.
                    tracing::debug!(target: "ofi::verbs::ep_ctrl", %error, "the name server takes no connection");
                    std::thread::sleep(Duration::from_millis(10));
                    break;
                }
            }
        }
        let now = Instant::now();
        callers.retain_mut(|caller| !caller.serve(names) && caller.until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_api::AddrFormat;

    fn name(byte: u8) -> Address {
        Address::new(AddrFormat::IbUd, &[byte; 32])
    }

    #[test]
    fn the_latest_name_of_a_service_counts_and_is_removed_by_its_owner_alone() {
        let mut names = Names::default();
        assert_eq!(names.find(ANY), None);
        names.add(7, name(1));
        names.add(7, name(2));
        names.remove(7, &name(1));
        assert_eq!(
            [names.find(7), names.find(ANY), names.find(8)],
            [Some((7, &name(2))), Some((7, &name(2))), None]
        );
        names.remove(7, &name(2));
        assert_eq!(names.find(7), None);
    }

    #[test]
    fn full_tables_take_no_further_service() {
        let mut names = Names::default();
        (1..=MAX_NAMES as u32 + 1).for_each(|service| names.add(service, name(1)));
        assert_eq!((names.0.len(), names.find(MAX_NAMES as u32 + 1)), (MAX_NAMES, None));
        names.add(1, name(2));
        assert_eq!(names.find(1), Some((1, &name(2))));
    }

    /// The names that one request leaves in an empty table.
    fn left(is_local: bool, request: &NameRequest) -> usize {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        from.write_all(&request.encode()).unwrap();
        let stream = listener.accept().unwrap().0;
        let names = Mutex::<Names>::default();
        let mut caller = Caller { stream, is_local, arrived: Vec::new(), until: Instant::now() };
        while !caller.serve(&names) {}
        names.into_inner().unwrap().0.len()
    }

    #[test]
    fn only_processes_of_this_host_enter_names() {
        let request = NameRequest::Add(7, name(1));
        assert_eq!([left(true, &request), left(false, &request)], [1, 0]);
    }
}
