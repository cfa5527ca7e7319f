//! Ports of sockets without a fixed one: they come from a range, so that a firewall can allow them.

use std::ops::RangeInclusive;

/// The first socket that `bind` can bind to a port of the range. Returns the first error other than a taken port
/// (`is_taken`); `None` if all ports are taken.
pub fn first_free<T, E>(
    range: RangeInclusive<u16>,
    is_taken: impl Fn(&E) -> bool,
    mut bind: impl FnMut(u16) -> Result<T, E>,
) -> Option<Result<T, E>> {
    let (low, len) = (*range.start(), u32::from(range.end().saturating_sub(*range.start())) + 1);
    // Starts at a random port, so that processes that start together do not try the same ports in turn.
    let start = getrandom::u32().unwrap_or(0) % len;
    let ports = (0..len).map(|step| low + ((start + step) % len) as u16);
    ports.map(&mut bind).find(|bound| !matches!(bound, Err(error) if is_taken(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_a_range_is_given_once_and_then_none_is_left() {
        let mut taken = Vec::new();
        let mut next = || {
            first_free(
                65_533..=u16::MAX,
                |_| true,
                |port| {
                    let is_free = !taken.contains(&port);
                    is_free.then(|| taken.push(port)).ok_or(port)
                },
            )
        };
        assert!((0..3).all(|_| next() == Some(Ok(()))) && next().is_none());
        taken.sort_unstable();
        assert_eq!(taken, [65_533, 65_534, 65_535]);
    }

    #[test]
    fn an_error_other_than_a_taken_port_ends_the_search() {
        let mut tried = 0;
        let found = first_free(
            1..=9,
            |error| *error == "taken",
            |_| {
                tried += 1;
                if tried < 3 { Err("taken") } else { Err::<(), _>("refused") }
            },
        );
        assert_eq!((found, tried), (Some(Err("refused")), 3));
    }
}
