//! A rail whose queue cannot be read: nothing on it ends, so its paths rest, and their work moves as that of a mute
//! path does (`fence.rs`), without waiting until it is noticed to be one.

use ofi::Errno;

use super::session::State;
use super::{Core, Time};

impl<G> Core<G> {
    /// A rail cannot be driven until this time.
    pub fn rail_failed(&mut self, rail: usize, errno: Errno, until: Time, now: Time) {
        self.now = now;
        self.account();
        if let Some(rests) = self.rests_until.get_mut(rail) {
            *rests = until;
        }
        for id in self.sessions.ids(|session| session.paths.iter().any(|path| path.rail == rail)) {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let paths = session.paths.iter_mut().filter(|path| path.rail == rail);
            paths.for_each(|path| path.rest_until(until));
            self.check_paths(id, errno, now);
            for index in 0..self.sessions.get(id).map_or(0, |session| session.paths.len()) {
                let Some(session) = self.sessions.get(id).filter(|session| session.state == State::Up) else {
                    break;
                };
                let path = &session.paths[index];
                // With one request to fence at a time, the others are fenced when they are looked at.
                if path.rail == rail && path.operations > 0 && session.fence.is_none() {
                    self.fence(id, index, now);
                }
            }
            self.wake(id);
        }
    }
}
