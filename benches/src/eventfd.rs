//! The bare eventfd round trip: the cost of a wake-up on this machine.

use std::{
    fs::File,
    io::{self, Read, Write},
    thread,
    time::Instant,
};

use crate::{Error, Figures, Result, figures::median, sys};

const BATCH: usize = 200;
const BATCHES: usize = 25;

/// Two threads on `cores`, each asleep in a blocking read until the other writes. Latency is the round trip.
pub fn measure(cores: [usize; 2]) -> Result<Figures> {
    let (ping, pong) = (open()?, open()?);
    let (ping, pong) = (&ping, &pong);
    let pinned = |core| sys::pin_current_thread(core).map_err(Error::io(format!("pinning to core {core}")));
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            let pinned = pinned(cores[1]);
            for _ in 0..BATCH * BATCHES {
                sleep(ping).and_then(|()| wake(pong)).map_err(Error::io("answering over an eventfd"))?;
            }
            pinned
        });
        let asking = scope.spawn(move || {
            let pinned = pinned(cores[0]);
            let mut batches = Vec::with_capacity(BATCHES);
            for _ in 0..BATCHES {
                let start = Instant::now();
                for _ in 0..BATCH {
                    wake(ping).and_then(|()| sleep(pong)).map_err(Error::io("asking over an eventfd"))?;
                }
                batches.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
            }
            pinned.map(|()| Figures::from_latency(0, median(batches).unwrap_or(f64::NAN)))
        });
        match (asking.join(), answering.join()) {
            (Ok(figures), Ok(answered)) => answered.and(figures),
            _ => Err(Error::Link("a thread of the eventfd round trip panicked".into())),
        }
    })
}

fn open() -> Result<File> {
    sys::eventfd().map_err(Error::io("opening an eventfd"))
}

fn wake(mut file: &File) -> io::Result<()> {
    file.write_all(&1_u64.to_ne_bytes())
}

fn sleep(mut file: &File) -> io::Result<()> {
    file.read_exact(&mut [0; 8])
}
