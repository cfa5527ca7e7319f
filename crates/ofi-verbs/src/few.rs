//! A list that stores a single value without an allocation.

use std::ops::Deref;

/// One value inline, or several on the heap.
pub enum Few<T> {
    /// The only one.
    One([T; 1]),
    /// Any number.
    Many(Box<[T]>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

impl<T: Copy> From<&[T]> for Few<T> {
    fn from(all: &[T]) -> Self {
        match *all {
            [one] => Self::One([one]),
            _ => Self::Many(all.into()),
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter();
        match (all.next(), all.next()) {
            (None, _) => Self::default(),
            (Some(one), None) => Self::One([one]),
            (Some(first), Some(second)) => Self::Many([first, second].into_iter().chain(all).collect()),
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(all) => all,
        }
    }
}

impl<T: Copy> Few<T> {
    /// The values as a boxed slice.
    pub fn into_boxed(self) -> Box<[T]> {
        match self {
            Self::One(one) => Box::new(one),
            Self::Many(all) => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn any_number_of_values_comes_back() {
        for all in [&[][..], &[7], &[7, 8, 9]] {
            let few = Few::from(all);
            assert_eq!(&few[..], all);
            assert_eq!(&all.iter().copied().collect::<Few<_>>()[..], all);
            assert_eq!(*few.into_boxed(), *all);
        }
        assert!(Few::<u8>::default().is_empty());
    }
}
