//! Records which events were already logged for a peer, for events that are logged once per peer rather than per
//! message.

/// The events of one peer that were logged: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told(u8);

impl Told {
    /// Whether event `nth`, which is below 8, comes for the first time.
    #[inline]
    pub const fn is_first(&mut self, nth: u8) -> bool {
        let bit = 1 << nth;
        let is_new = self.0 & bit == 0;
        self.0 |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_new_once() {
        let mut told = Told::default();
        assert!(told.is_first(0) && told.is_first(7));
        assert!(!told.is_first(0) && !told.is_first(7) && told.is_first(1));
        assert!(Told::default().is_first(0), "another peer's");
    }
}
