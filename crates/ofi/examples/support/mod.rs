//! Shared by the examples: a second process, and time limits.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ofi::threading::Level;
use ofi::{Address, Completion, FiAddr, Hints, Node};

/// Result of an example: any failure ends it with a message and a non-zero code.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The time limit of every step.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Runs `main`, and prints the reason if it fails.
pub fn report(main: impl FnOnce() -> Outcome) -> ExitCode {
    match main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Hints for `usual`, the provider that an example is written for, or for the one named in `OFI_EXAMPLE_PROVIDER`: each
/// example runs over every provider with the capabilities that it uses.
#[allow(dead_code, reason = "not every example names a provider")]
pub fn hints(usual: &str) -> Hints {
    Hints::new().provider(std::env::var("OFI_EXAMPLE_PROVIDER").unwrap_or_else(|_| usual.into()))
}

/// Waits for the next completion, which must be a success.
pub fn next<L: Level>(node: &Node<L>) -> Outcome<Completion> {
    Ok(node.wait(LIMIT)?.ok_or("nothing came within the limit")?.into_result()?)
}

/// Starts this program again as another process with `arguments`. Returns it, and the address that it prints first.
#[allow(dead_code, reason = "not every example has a second process")]
pub fn second_process(arguments: &[&str]) -> Outcome<(Process, Address)> {
    let mut child = Command::new(std::env::current_exe()?).args(arguments).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("no pipe")?;
    let child = Process(child);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok((child, line.trim().parse()?))
}

/// Starts this program again as another process with `arguments`.
#[allow(dead_code, reason = "not every example has a second process")]
pub fn process(arguments: &[String]) -> Outcome<Process> {
    Ok(Process(Command::new(std::env::current_exe()?).args(arguments).spawn()?))
}

/// A child process, which is killed when this value is dropped.
pub struct Process(Child);

impl Process {
    /// Waits for it to end successfully.
    #[allow(dead_code, reason = "not every example has a second process")]
    pub fn finish(mut self) -> Outcome {
        let until = Instant::now() + LIMIT;
        loop {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the other process ended with {status}").into()),
                None if Instant::now() > until => return Err("the other process did not end".into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends this node's address to `peer` as the first message; [`meet`] receives it.
#[allow(dead_code, reason = "not every example has a second process")]
pub fn greet<L: Level>(node: &Node<L>, peer: &Address) -> Outcome<FiAddr> {
    let peer = node.insert(peer)?;
    node.inject(node.name()?.to_string().as_bytes(), peer)?;
    Ok(peer)
}

/// Receives the address of a peer that calls [`greet`].
#[allow(dead_code, reason = "not every example has a second process")]
pub fn meet<L: Level>(node: &Node<L>) -> Outcome<FiAddr> {
    node.recv(vec![0; 256])?;
    let greeting = next(node)?;
    let address: Address = std::str::from_utf8(greeting.bytes())?.parse()?;
    Ok(node.insert(&address)?)
}
