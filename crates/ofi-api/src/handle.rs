//! An object that an info refers to.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

/// An object that an [`Info`](crate::Info) refers to. Clones refer to the same object.
#[derive(Clone)]
pub struct Handle(Object);

#[derive(Clone)]
enum Object {
    /// Kept alive.
    Any(Arc<dyn Any + Send + Sync>),
    /// An open object, which this does not keep open.
    Open(Arc<dyn OpenedObject>),
}

/// A weak reference to an object of any type.
trait OpenedObject: Send + Sync {
    /// The reference, a `Weak<T>`.
    fn as_any(&self) -> &dyn Any;
    /// Whether the object is open.
    fn is_open(&self) -> bool;
    /// The object's address. While this reference exists, no other object can have the same address.
    fn as_ptr(&self) -> *const ();
}

impl<T: ?Sized + Send + Sync + 'static> OpenedObject for Weak<T> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_open(&self) -> bool {
        self.strong_count() > 0
    }

    fn as_ptr(&self) -> *const () {
        Weak::as_ptr(self).cast()
    }
}

impl Handle {
    /// A handle to `object`, which keeps it alive.
    pub fn new<T: Any + Send + Sync>(object: Arc<T>) -> Handle {
        Handle(Object::Any(object))
    }

    /// A handle to an open object, which does not keep it open.
    pub(crate) fn of_open<T: ?Sized + Send + Sync + 'static>(object: &Arc<T>) -> Handle {
        Handle(Object::Open(Arc::new(Arc::downgrade(object))))
    }

    /// The object, if it is a `T`.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let Object::Any(object) = &self.0 else { return None };
        Arc::clone(object).downcast().ok()
    }

    /// The object, if it is a `T` and open: see [`Handle::of_open`].
    pub(crate) fn opened<T: ?Sized + Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let Object::Open(object) = &self.0 else { return None };
        object.as_any().downcast_ref::<Weak<T>>()?.upgrade()
    }

    /// Whether the object is open.
    pub fn is_open(&self) -> bool {
        match &self.0 {
            Object::Any(_) => true,
            Object::Open(object) => object.is_open(),
        }
    }

    fn as_ptr(&self) -> *const () {
        match &self.0 {
            Object::Any(object) => Arc::as_ptr(object).cast(),
            Object::Open(object) => object.as_ptr(),
        }
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Handle) -> bool {
        self.as_ptr() == other.as_ptr()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.as_ptr(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_gives_back_its_object_and_only_as_what_it_is() {
        let object = Arc::new(7_u32);
        let handle = Handle::new(Arc::clone(&object));
        assert_eq!(handle.downcast::<u32>(), Some(object));
        assert_eq!(handle.downcast::<u64>(), None);
        assert_eq!(handle, handle.clone());
        assert_ne!(handle, Handle::new(Arc::new(7_u32)));
    }

    #[test]
    fn a_handle_to_an_open_object_does_not_keep_it_open() {
        let object: Arc<str> = Arc::from("open");
        let (handle, again) = (Handle::of_open(&object), Handle::of_open(&object));
        assert_eq!(handle, again);
        assert_ne!(handle, Handle::of_open(&Arc::<str>::from("open")));
        assert_eq!(handle.opened::<str>(), Some(Arc::clone(&object)));
        assert_eq!(handle.opened::<[u8]>(), None);
        assert_eq!(handle.downcast::<u32>(), None);
        assert!(handle.is_open());
        drop(object);
        assert!(!handle.is_open());
        assert_eq!(handle.opened::<str>(), None);
        assert_eq!(handle, again, "closed, it is still the same object");
    }
}
