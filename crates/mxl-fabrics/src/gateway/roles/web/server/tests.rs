//! The server, and clients that break the rules.

use super::*;

struct Echo;

impl Site for Echo {
    fn answer(&mut self, request: &HttpRequest) -> HttpResponse {
        match request.path.as_str() {
            "/large" => HttpResponse::new(200, "text/plain", vec![b'x'; 32 << 20]),
            path => HttpResponse::new(
                200,
                "text/plain",
                format!("{} {path} {}", request.method, request.body.len()),
            ),
        }
    }
}

/// Longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(40);

/// A server, and its address. It drops clients that are slower than a limit.
fn server(limit: Duration) -> (Server, SocketAddr) {
    let (listener, at) = listen("127.0.0.1:0").unwrap();
    (Server::start(listener, limit, Echo).unwrap(), at)
}

/// A connection whose reads end within a generous time.
fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn requests_of_one_connection_are_answered_in_order() {
    let (_server, at) = server(LONG);
    let mut stream = connect(at);
    stream.write_all(b"GET /a HTTP/1.1\r\n\r\nPATCH /b HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    stream.write_all(b"GET /c HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let said = rest(stream);
    let places = ["GET /a 0", "PATCH /b 2", "GET /c 0"].map(|answer| said.find(answer));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{said}");
}

#[test]
fn nonsense_is_answered_and_ends_the_connection() {
    let (_server, at) = server(LONG);
    let mut stream = connect(at);
    stream.write_all(b"\x16\x03\x01 hello\r\n\r\n").unwrap();
    assert!(rest(stream).starts_with("HTTP/1.1 400 "));
    // Others are served.
    let mut stream = connect(at);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert!(rest(stream).ends_with("GET / 0"));
}

#[test]
fn a_web_site_with_an_address_of_this_host_is_refused() {
    let (_server, at) = server(LONG);
    for (host, status) in [("evil.example", 421), ("localhost", 200), ("127.0.0.1:1", 200)] {
        let mut stream = connect(at);
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        assert!(rest(stream).starts_with(&format!("HTTP/1.1 {status} ")), "{host}");
    }
}

#[test]
fn a_connection_beyond_the_limit_is_closed() {
    let (_server, at) = server(LONG);
    let idle: Vec<TcpStream> = (0..MAX_CONNECTIONS).map(|_| connect(at)).collect();
    // Each is served: so all of them are accepted.
    for mut stream in &idle {
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
    }
    assert_eq!(rest(connect(at)), "");
    drop(idle);
    let begin = Instant::now();
    while begin.elapsed() < LONG {
        let mut stream = connect(at);
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
        if rest(stream).ends_with("GET / 0") {
            return;
        }
    }
    panic!("no connection is accepted any more");
}

#[test]
fn who_sends_or_reads_nothing_is_dropped() {
    let (_server, at) = server(Duration::from_millis(300));
    let mut deaf = connect(at);
    deaf.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
    // Half of a request, twice: when the second one is dropped, the answer before the first one has timed out too.
    for _ in 0..2 {
        let mut slow = connect(at);
        slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(rest(slow), "", "it was answered");
    }
    assert!(rest(deaf).len() < 32 << 20, "the answer was kept for who does not read");
}
