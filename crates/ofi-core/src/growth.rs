//! Vectors with one entry per peer, for very large numbers of peers.

/// Appends `thing`. The list grows by an eighth rather than doubling: with ten thousand peers, up to half of each list
/// would otherwise be unused. Each entry is moved about eight times instead of once, which is negligible beside the
/// cost of a new peer.
pub fn push<T>(list: &mut Vec<T>, thing: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(8));
    }
    list.push(thing);
}

#[cfg(test)]
mod tests {
    #[test]
    fn little_room_is_left_over() {
        let mut list = Vec::new();
        for number in 0..10_000 {
            super::push(&mut list, number);
            assert!(list.capacity() <= list.len() + (list.len() / 8).max(8));
        }
        assert!(list.into_iter().eq(0..10_000));
    }
}
