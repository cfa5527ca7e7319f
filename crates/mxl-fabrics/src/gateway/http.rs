//! Requests and answers of HTTP/1.1. Parsing has no other effects.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum length of a request's line and header fields together, in bytes.
pub const MAX_HEAD: usize = 16 << 10;
/// Maximum length of a request's body, in bytes.
pub const MAX_BODY: usize = 64 << 10;
/// Maximum header fields of a request.
const MAX_FIELDS: usize = 64;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Its method, such as `GET`.
    pub method: String,
    /// The path, without a query.
    pub path: String,
    /// The field `Host`, if there is one.
    pub host: Option<String>,
    /// Its body; empty without one.
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// Whether it names no host, `localhost`, or an IP address. Any other name may be that of a web site whose address
    /// was changed to one of this host, so that its scripts reach this server (DNS rebinding).
    pub fn is_to_address(&self) -> bool {
        let Some(host) = &self.host else { return true };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) => name,
            _ => host,
        };
        let of_v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<Ipv4Addr>().is_ok()
            || of_v6.is_some_and(|name| name.parse::<Ipv6Addr>().is_ok())
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    fields: Vec<(&'static str, String)>,
}

impl HttpResponse {
    /// An answer with a body of a media type.
    pub fn new(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, kind, body: body.into(), fields: Vec::new() }
    }

    /// A line of plain text that says why there is nothing else.
    pub fn error(status: u16, why: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", format!("{why}\n"))
    }

    /// With another header field. Its value has no line ends.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// The bytes of the answer. `is_last` says that the connection ends after it, `is_head` that it has no body.
    pub fn to_bytes(&self, is_last: bool, is_head: bool) -> Vec<u8> {
        let (status, reason) = (self.status, reason(self.status));
        let mut head = format!("HTTP/1.1 {status} {reason}\r\nContent-Type: {}\r\n", self.kind);
        // Writing to a `String` cannot fail.
        let _ = write!(head, "Content-Length: {}\r\n", self.body.len());
        head += "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
        for (name, value) in &self.fields {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head += if is_last { "Connection: close\r\n\r\n" } else { "\r\n" };
        let mut bytes = head.into_bytes();
        if !is_head {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        423 => "Locked",
        500 => "Internal Server Error",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Other",
    }
}

/// What the bytes of a connection begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Part of a request.
    More,
    /// A request.
    Request {
        /// The request.
        request: HttpRequest,
        /// Its length in bytes.
        len: usize,
        /// The client wants no other answer on this connection.
        is_last: bool,
    },
    /// What is no request, or one that is too large. The connection ends after this answer.
    Refused(HttpResponse),
}

/// Parses the request at the start of `input`.
pub fn parse(input: &[u8]) -> Parsed {
    let refused = |status, why: &str| Parsed::Refused(HttpResponse::error(status, why));
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let head_len = match head.parse(&input[..input.len().min(MAX_HEAD)]) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Parsed::More,
        Ok(httparse::Status::Partial) => return refused(431, "a request's head has at most 16 KiB"),
        Err(httparse::Error::TooManyHeaders) => {
            return refused(431, "a request has at most 64 header fields");
        }
        Err(error) => return refused(400, &format!("no request of HTTP/1.1: {error}")),
    };
    let named = |name: &'static str| {
        let is_named = move |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
        head.headers.iter().filter(is_named).map(|field| field.value)
    };
    if named("transfer-encoding").next().is_some() {
        return refused(501, "a body needs a Content-Length");
    }
    let number = |value: &[u8]| {
        let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
        // `parse` alone would take a sign, too.
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let mut lengths = named("content-length").map(number);
    let body_len: usize = match (lengths.next(), lengths.next()) {
        (None, _) => 0,
        (Some(Some(len)), None) => len,
        _ => return refused(400, "one Content-Length is a number of bytes"),
    };
    if body_len > MAX_BODY {
        return refused(413, "a body has at most 64 KiB");
    }
    let (Some(method), Some(target)) = (head.method, head.path) else {
        return refused(400, "no method or no path");
    };
    if !target.starts_with('/') && target != "*" {
        return refused(400, "a request names a path, not another host");
    }
    let mut hosts = named("host").map(|value| String::from_utf8_lossy(value.trim_ascii()).into_owned());
    let host = hosts.next();
    if hosts.next().is_some() {
        return refused(400, "a request has one Host");
    }
    let len = head_len + body_len;
    let Some(body) = input.get(head_len..len) else { return Parsed::More };
    let has = |value: &[u8], option| {
        String::from_utf8_lossy(value).split(',').any(|part| part.trim().eq_ignore_ascii_case(option))
    };
    // A client of version 1.0 that wants to keep its connection expects fields that this server does not send.
    let is_last = head.version == Some(0) || named("connection").any(|value| has(value, "close"));
    let path = target.split('?').next().unwrap_or_default();
    let request = HttpRequest { method: method.into(), path: path.into(), host, body: body.to_vec() };
    Parsed::Request { request, len, is_last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(input: &[u8]) -> Option<u16> {
        match parse(input) {
            Parsed::Refused(response) => Some(response.status),
            _ => None,
        }
    }

    #[test]
    fn a_request_is_parsed_when_it_is_whole() {
        let text = b"PATCH /single?verbose=1 HTTP/1.1\r\nHost: a\r\ncontent-length: 3\r\n\r\nabcGET /";
        let whole = text.len() - 5;
        for len in 0..whole {
            assert_eq!(parse(&text[..len]), Parsed::More, "{len} bytes");
        }
        let (method, path, host) = ("PATCH".into(), "/single".into(), Some("a".into()));
        let request = HttpRequest { method, path, host, body: b"abc".to_vec() };
        assert_eq!(parse(text), Parsed::Request { request, len: whole, is_last: false });
    }

    #[test]
    fn a_name_other_than_localhost_is_told_from_addresses() {
        let is_to_address = |fields: &str| {
            let text = format!("GET / HTTP/1.1\r\n{fields}\r\n");
            let Parsed::Request { request, .. } = parse(text.as_bytes()) else { panic!("{text}") };
            request.is_to_address()
        };
        assert!(is_to_address(""));
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "192.0.2.1:7481", "[::1]", "[2001:db8::1]:80"]
        {
            assert!(is_to_address(&format!("Host: {host}\r\n")), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:7481", "127.0.0.1.evil.example", "localhost.", "[::1", "1:x"]
        {
            assert!(!is_to_address(&format!("Host: {host}\r\n")), "{host}");
        }
    }

    #[test]
    fn connections_end_when_the_client_says_so() {
        for (head, ends) in [
            ("GET / HTTP/1.1\r\n", false),
            ("GET / HTTP/1.0\r\n", true),
            ("GET / HTTP/1.1\r\nConnection: x, Close\r\n", true),
        ] {
            let Parsed::Request { is_last, .. } = parse(format!("{head}\r\n").as_bytes()) else {
                panic!("{head}")
            };
            assert_eq!(is_last, ends, "{head}");
        }
    }

    #[test]
    fn what_is_wrong_or_too_large_is_refused() {
        for (text, wanted) in [
            ("\u{1}\r\n\r\n".to_string(), 400),
            ("GET http://elsewhere/ HTTP/1.1\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello".into(), 400),
            ("GET / HTTP/1.1\r\nContent-Length: \r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".into(), 400),
            (format!("GET / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1), 413),
            (format!("GET / HTTP/1.1\r\nContent-Length: {}0\r\n\r\n", u64::MAX), 400),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 501),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(MAX_HEAD)), 431),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1)), 431),
        ] {
            assert_eq!(status(text.as_bytes()), Some(wanted), "{}", &text[..text.len().min(60)]);
        }
    }

    #[test]
    fn an_answer_to_head_has_the_length_alone() {
        let response = HttpResponse::new(200, "text/plain", "hello").with("Allow", "GET");
        let text = |is_head| String::from_utf8(response.to_bytes(true, is_head)).unwrap();
        assert!(text(true).ends_with("Connection: close\r\n\r\n") && text(false).ends_with("\r\n\r\nhello"));
        assert!(text(true).contains("Content-Length: 5\r\n") && text(true).contains("Allow: GET\r\n"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(
            head in proptest::bool::ANY,
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        ) {
            if head {
                bytes.splice(..0, *b"GET /flows HTTP/1.1\r\nContent-Length: 9\r\n");
            }
            if let Parsed::Request { len, .. } = parse(&bytes) {
                assert!(len <= bytes.len());
            }
        }
    }
}
