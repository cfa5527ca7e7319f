//! A real etcd: Debian's `etcd-server`, started for one test in a directory of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of its start.
const LONG: Duration = Duration::from_secs(20);

/// A server of one member, which is killed on drop.
pub struct Server {
    child: Child,
    command: Command,
    directory: PathBuf,
    client: SocketAddr,
}

impl Server {
    /// Starts a server for the test of this name. Without etcd, prints that and returns `None`.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(test: &str) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("NOT RUN: {test}: no etcd (apt-get install etcd-server)");
            return None;
        }
        let directory = std::env::temp_dir().join(format!("ofi-etcd-{test}.{}", std::process::id()));
        // The ports are free now. If another process takes one meanwhile, etcd ends, and other ports are tried.
        for _ in 0..5 {
            let free =
                || TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
            let (client, peer) = (free(), free());
            let [client_url, peer_url] = [client, peer].map(|address| format!("http://{address}"));
            let mut command = Command::new("etcd");
            command.arg("--data-dir").arg(&directory).args(["--name", "test", "--log-level", "error"]);
            command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
            command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
            command.arg("--initial-cluster").arg(format!("test={peer_url}"));
            // No data outlives the test, so none has to reach a disk.
            command.arg("--unsafe-no-fsync").stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().expect("etcd starts");
            let mut server = Self { child, command, directory: directory.clone(), client };
            if server.has_started() {
                return Some(server);
            }
        }
        panic!("etcd does not start");
    }

    fn has_started(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < LONG && matches!(self.child.try_wait(), Ok(None)) {
            if self.ask("maintenance/status", "{}").contains("\"leader\"") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Kills the server. Its data is on its disk.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts the server at the same address with its data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        let began = Instant::now();
        while began.elapsed() < LONG {
            self.kill();
            self.child = self.command.spawn().expect("etcd starts");
            if self.has_started() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200)); // another process has its port for a moment
        }
        panic!("etcd does not start again");
    }

    /// The URL for its clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    /// The server's answer to a call of its gateway with this JSON, including the headers; empty if there is no answer.
    pub fn ask(&self, method: &str, body: &str) -> String {
        let length = body.len();
        self.exchange(&format!("POST /v3/{method} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"))
    }

    /// Its metrics in Prometheus's format.
    pub fn metrics(&self) -> String {
        self.exchange("GET /metrics HTTP/1.0\r\n\r\n")
    }

    fn exchange(&self, request: &str) -> String {
        let mut answer = String::new();
        let asked = TcpStream::connect(self.client).and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            stream.read_to_string(&mut answer)
        });
        asked.map_or(String::new(), |_| answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
