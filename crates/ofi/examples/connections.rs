//! A server that accepts connections and rejects those without the password, and two clients in separate processes.
//!
//! `cargo run --release --example connections`
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::{Connection, Errno, Listener};
use support::{LIMIT, Outcome};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    support::report(|| match &arguments[..] {
        [address, password] => client(address, password),
        _ => server(),
    })
}

fn server() -> Outcome {
    let listener = Listener::open(&support::hints("shm"))?;
    let address = listener.name()?.to_string();
    for password in ["sesame", "guess"] {
        let program = std::env::current_exe()?;
        let mut client = std::process::Command::new(program).args([&address, password]).spawn()?;
        let request = listener.wait(LIMIT)?.ok_or("no request arrived")?;
        if request.data() == b"sesame" {
            let connection = request.accept(b"come in", LIMIT)?;
            connection.recv(vec![0; 64])?;
            let message = support::next(&connection)?;
            println!("the server got {:?}", String::from_utf8_lossy(message.bytes()));
            if !connection.wait_shutdown(LIMIT)? {
                return Err("the client did not end the connection".into());
            }
        } else {
            request.reject(b"wrong password")?;
        }
        if !client.wait()?.success() {
            return Err("a client failed".into());
        }
    }
    Ok(())
}

fn client(address: &str, password: &str) -> Outcome {
    let hints = support::hints("shm");
    match Connection::open(&hints, &address.parse()?, password.as_bytes(), LIMIT) {
        Ok(connection) => {
            println!("the client heard {:?}", String::from_utf8_lossy(connection.greeting()));
            connection.send(b"thank you".to_vec())?;
            support::next(&*connection)?;
            connection.shutdown()?;
        }
        Err(refused) if refused.error.errno() == Errno::ECONNREFUSED => {
            println!("refused: {}", String::from_utf8_lossy(&refused.data));
        }
        Err(refused) => return Err(refused.into()),
    }
    Ok(())
}
