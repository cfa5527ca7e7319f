//! A stand-in of a registry: it answers as IS-04 v1.3 says, fails when it is told to, and remembers all requests.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longer than anything takes on a loaded machine.
pub const LONG: Duration = Duration::from_secs(40);

#[derive(Default)]
pub struct RegistryState {
    /// Resources by collection and id.
    pub resources: BTreeMap<(String, String), Value>,
    pub requests: Vec<String>,
    /// All requests are answered with this status.
    pub fails: Option<u16>,
    pub beats: u32,
    /// Time that each resource takes to be registered.
    pub delay: Duration,
}

/// A registry: its registration and query APIs.
#[derive(Clone)]
pub struct Registry {
    at: SocketAddr,
    pub state: Arc<Mutex<RegistryState>>,
}

impl Registry {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Self { at: listener.local_addr().unwrap(), state: Arc::default() };
        let there = registry.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let there = there.clone();
                std::thread::spawn(move || there.serve(stream));
            }
        });
        registry
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// One request, and the end of the connection.
    fn serve(&self, mut stream: TcpStream) {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        let (method, path, body) = loop {
            let len = stream.read(&mut buffer).unwrap_or(0);
            bytes.extend_from_slice(&buffer[..len]);
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Request::new(&mut fields);
            if let Ok(httparse::Status::Complete(start)) = head.parse(&bytes) {
                let length =
                    head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
                let length =
                    length.map_or(0, |field| std::str::from_utf8(field.value).unwrap().parse().unwrap());
                if let Some(body) = bytes.get(start..start + length) {
                    break (head.method.unwrap().to_owned(), head.path.unwrap().to_owned(), body.to_vec());
                }
            }
            if len == 0 {
                return;
            }
        };
        if path.ends_with("/resource") {
            let delay = self.state.lock().unwrap().delay;
            std::thread::sleep(delay);
        }
        let (status, link, answer) = self.answer(&method, &path, &body);
        let text = if answer.is_null() { String::new() } else { answer.to_string() };
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{link}Connection: close\r\n\r\n",
            text.len()
        );
        let _ = stream.write_all((head + &text).as_bytes());
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, String, Value) {
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("{method} {path}"));
        let none = String::new();
        if let Some(status) = state.fails {
            return (status, none, json!({ "code": status, "error": "told to fail", "debug": null }));
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').skip(1).collect();
        let (status, answer) = match (method, &parts[..]) {
            ("GET", ["registration" | "query"]) => (200, json!(["v1.2/", "v1.3/"])),
            ("POST", ["registration", "v1.3", "resource"]) => {
                let body: Value = serde_json::from_slice(body).unwrap();
                let key = (
                    format!("{}s", body["type"].as_str().unwrap()),
                    body["data"]["id"].as_str().unwrap().into(),
                );
                let former = state.resources.insert(key, body["data"].clone());
                (if former.is_some() { 200 } else { 201 }, body["data"].clone())
            }
            ("DELETE", ["registration", "v1.3", "resource", kind, id]) => {
                let gone = state.resources.remove(&(kind.to_string(), id.to_string()));
                if *kind == "nodes" {
                    state.resources.clear();
                }
                (if gone.is_some() { 204 } else { 404 }, Value::Null)
            }
            ("POST", ["registration", "v1.3", "health", "nodes", id]) => {
                state.beats += 1;
                let is_known = state.resources.contains_key(&("nodes".into(), id.to_string()));
                if is_known {
                    (200, json!({ "health": "1" }))
                } else {
                    (404, json!({ "error": "unknown node" }))
                }
            }
            // Pages of two resources.
            ("GET", ["query", "v1.3", collection]) => {
                let (name, page) = collection.split_once("?page=").unwrap_or((collection, "0"));
                let page: usize = page.parse().unwrap();
                let all: Vec<&Value> = state
                    .resources
                    .iter()
                    .filter(|((kind, _), _)| kind == name)
                    .map(|(_, value)| value)
                    .collect();
                let next = format!(
                    "Link: <{}/x-nmos/query/v1.3/{name}?page={}>; rel=\"prev\"\r\n",
                    self.url(),
                    page + 1
                );
                let page: Vec<_> = all.into_iter().skip(page * 2).take(2).collect();
                return (200, next, json!(page));
            }
            _ => (404, json!({ "error": "no such path" })),
        };
        (status, none, answer)
    }

    pub fn count(&self, kind: &str) -> usize {
        self.state.lock().unwrap().resources.keys().filter(|(of, _)| of == kind).count()
    }

    pub fn get(&self, kind: &str, id: &str) -> Option<Value> {
        self.state.lock().unwrap().resources.get(&(kind.into(), id.into())).cloned()
    }

    pub fn set_failure(&self, status: Option<u16>) {
        self.state.lock().unwrap().fails = status;
    }

    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LONG, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
