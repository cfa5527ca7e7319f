//! The connection that keeps the two instances in step.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::output::tell;

/// Interval of attempts to reach the other instance.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit of an answer while no program runs.
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum length of a line of facts, in bytes.
const MAX_LINE_LEN: u64 = 64 << 10;

/// A connection to the other instance.
pub struct Link(TcpStream);

impl Link {
    /// Waits for the other instance for at most `wait`, or connects to `host`, which may start within that time.
    ///
    /// # Errors
    /// The other instance did not connect, or does not listen.
    pub fn meet(host: Option<&str>, port: u16, wait: Duration) -> Result<Self> {
        let end = Instant::now() + wait;
        let stream = match host {
            None => waiting(port, wait, end)?,
            Some(host) => connecting(host, port, wait, end)?,
        };
        stream.set_nodelay(true).map_err(|error| Failure::system("the other instance", error))?;
        Ok(Self(stream))
    }

    /// Sends this end's line, and receives the other's.
    ///
    /// # Errors
    /// The other end is gone or silent.
    pub fn exchange(&mut self, line: &str) -> Result<String> {
        let failed = |error| Failure::system("the other instance", error);
        self.0.set_read_timeout(Some(ANSWER)).map_err(failed)?;
        self.0.write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
        let mut line = Vec::new();
        // One byte at a time, because the data after the line belongs to `told`.
        let mut bytes = BufReader::with_capacity(1, &mut self.0).take(MAX_LINE_LEN);
        bytes.read_until(b'\n', &mut line).map_err(failed)?;
        // The programs have time limits of their own.
        self.0.set_read_timeout(None).map_err(failed)?;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Reports whether this side's program succeeded, and waits for the other's report.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn told(&mut self, well: bool) -> Result<bool> {
        let failed = |error| Failure::system("the other instance is gone", error);
        self.0.write_all(&[u8::from(well)]).map_err(failed)?;
        let mut word = [0];
        self.0.read_exact(&mut word).map_err(failed)?;
        Ok(word == [1])
    }
}

fn waiting(port: u16, wait: Duration, end: Instant) -> Result<TcpStream> {
    let failed = |error| Failure::system(format!("port {port}"), error);
    let listener = TcpListener::bind(("0.0.0.0", port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let seconds = wait.as_secs();
    tell(&format!(
        "waiting up to {seconds} s (--wait) for: ofi efa-bench ADDRESS_OF_THIS_INSTANCE --port {port}"
    ));
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let doing = format!("waiting at port {port} (the security group must let TCP through)");
                return Err(Failure::Silent { doing, limit: wait });
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

fn connecting(host: &str, port: u16, wait: Duration, end: Instant) -> Result<TcpStream> {
    let mut is_told = false;
    loop {
        match TcpStream::connect((host, port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() < end => {
                if !is_told {
                    tell(&format!(
                        "{host}, port {port}: {error}; trying for up to {} s (--wait): start ofi efa-bench --port {port} there",
                        wait.as_secs()
                    ));
                    is_told = true;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) => {
                let advice = "start ofi efa-bench there, and let TCP through in the security group";
                return Err(Failure::system(format!("{host}, port {port} ({advice})"), error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_end_may_come_first_and_neither_waits_for_ever() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let wait = Duration::from_secs(20);
        let client = std::thread::spawn(move || {
            let mut link = Link::meet(Some("127.0.0.1"), port, wait).unwrap();
            (link.exchange("client").unwrap(), link.told(true).unwrap())
        });
        std::thread::sleep(Duration::from_millis(300));
        let mut link = Link::meet(None, port, wait).unwrap();
        assert_eq!((link.exchange("server").unwrap().trim(), link.told(false).unwrap()), ("client", true));
        assert_eq!(client.join().unwrap(), ("server\n".to_string(), false));
        let short = Duration::from_millis(300);
        let alone = Link::meet(None, port, short).err().unwrap();
        assert!(matches!(alone, Failure::Silent { .. }), "{alone}");
        let nobody = Link::meet(Some("127.0.0.1"), port, short).err().unwrap().to_string();
        assert!(nobody.contains("start ofi efa-bench there"), "{nobody}");
    }
}
