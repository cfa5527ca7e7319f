//! An instance: a domain, and the objects that a program has open in it.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mxl::{BatchHints, Domain, FlowDefinition, Format, Status, Uuid};

use crate::group::Group;
use crate::reader::Reader;
use crate::types::Config;
use crate::writer::Writer;
use mxl_ffi::border::{self, Outcome, out, status, text};
use mxl_ffi::log;
use mxl_ffi::object::{Kind, Object, Place, magics};

/// The object behind `mxlInstance`.
pub struct Instance {
    pub(crate) domain: Domain,
    open: Mutex<Open>,
}

/// Readers and writers of one flow are one object each, with a reference count.
#[derive(Default)]
struct Open {
    readers: Vec<Counted<Reader>>,
    writers: Vec<Counted<Writer>>,
    groups: Vec<Counted<Group>>,
}

/// An object and its reference count.
struct Counted<T> {
    object: Arc<Object<T>>,
    references: usize,
}

impl Kind for Instance {
    const MAGIC: u64 = magics::INSTANCE;
}

/// The handle of an object.
type ObjectHandle<T> = *const Object<T>;

/// Hands out a new object, and keeps it.
fn keep<T: Kind>(list: &mut Vec<Counted<T>>, object: Object<T>) -> ObjectHandle<T> {
    let object = Arc::new(object);
    let handle = Arc::as_ptr(&object);
    list.push(Counted { object, references: 1 });
    handle
}

/// Returns an existing object again, if one matches.
fn again<T>(list: &mut [Counted<T>], fits: impl Fn(&T) -> bool) -> Option<ObjectHandle<T>> {
    let found = list.iter_mut().find(|counted| fits(&counted.object))?;
    found.references += 1;
    Some(Arc::as_ptr(&found.object))
}

/// Releases an object. The last release returns it, so that the caller can drop it outside the lock.
fn give_back<T>(list: &mut Vec<Counted<T>>, handle: ObjectHandle<T>) -> Outcome<Option<Arc<Object<T>>>> {
    // The handle is only compared: an unknown one may point anywhere.
    let found = list.iter().position(|counted| ptr::eq(Arc::as_ptr(&counted.object), handle));
    let at = found.ok_or(Status::InvalidArg)?;
    list[at].references -= 1;
    Ok((list[at].references == 0).then(|| list.swap_remove(at).object))
}

impl Instance {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, id: Uuid) -> Outcome<ObjectHandle<Reader>> {
        let mut open = self.open();
        if let Some(handle) = again(&mut open.readers, |reader| reader.id() == id && reader.is_current()) {
            return Ok(handle);
        }
        let reader = Reader::open(&self.domain, id)?;
        Ok(keep(&mut open.readers, Object::at(reader, Place::new(&self.domain, id))))
    }

    fn write(&self, json: &str, options: &str) -> Outcome<(ObjectHandle<Writer>, Config, bool)> {
        let definition = FlowDefinition::parse(json)?;
        let hints = BatchHints::parse(options)?;
        let mut open = self.open();
        // Opened even if a writer exists: this cheaply compares the existing flow with the definition.
        let (writer, created) = match definition.format {
            Format::Audio(_) => {
                let made = self.domain.create_samples_as(&definition, json.as_bytes(), &hints)?;
                (Writer::samples(made.writer), made.created)
            }
            Format::Video(_) | Format::Data(_) => {
                let made = self.domain.create_grains_as(&definition, json.as_bytes(), &hints)?;
                (Writer::grains(made.writer), made.created)
            }
        };
        let config = writer.config();
        let is_same = |there: &Writer| there.id() == definition.id && there.is_current();
        let handle = again(&mut open.writers, is_same).unwrap_or_else(|| {
            keep(&mut open.writers, Object::at(writer, Place::new(&self.domain, definition.id)))
        });
        Ok((handle, config, created))
    }
}

/// The instance behind a C handle.
///
/// # Errors
/// [`Status::InvalidArg`] for null and for a handle that is not an instance.
pub(crate) fn instance<'a>(handle: ObjectHandle<Instance>) -> Outcome<&'a Instance> {
    Object::get(handle).ok_or_else(|| Status::InvalidArg.into())
}

/// The id of a flow.
///
/// # Errors
/// [`Status::InvalidArg`] for null and for text that is not a UUID.
pub(crate) fn flow_id(pointer: *const c_char) -> Outcome<Uuid> {
    mxl::definition::parse_id(text(pointer)?).ok_or_else(|| Status::InvalidArg.into())
}

/// Options that may be null.
fn options<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    if pointer.is_null() { Ok("") } else { text(pointer) }
}

/// `mxlCreateInstance`. Returns null on error, such as a domain that does not exist. Options are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlCreateInstance(
    domain: *const c_char,
    _options: *const c_char,
) -> ObjectHandle<Instance> {
    log::init();
    let mut made = ptr::null();
    let place = &raw mut made;
    border::status(|| {
        let path = text(domain)?;
        let domain = Domain::open(Path::new(path))?;
        let instance = Instance { domain, open: Mutex::default() };
        out(place)?.set(Box::into_raw(Box::new(Object::new(instance))).cast_const());
        Ok(())
    });
    made
}

/// `mxlDestroyInstance`. Its open objects are closed; flows without another writer are deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlDestroyInstance(handle: ObjectHandle<Instance>) -> c_int {
    status(|| {
        instance(handle)?;
        // SAFETY: an instance of ours, as just checked, made by `Box::into_raw`; the C caller's promise: it is not in
        // use now.
        drop(unsafe { Box::from_raw(handle.cast_mut()) });
        Ok(())
    })
}

/// `mxlGarbageCollectFlows`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlGarbageCollectFlows(handle: ObjectHandle<Instance>) -> c_int {
    status(|| {
        let collected = instance(handle)?.domain.collect()?;
        tracing::debug!(?collected, "flows without writers were removed");
        Ok(())
    })
}

/// `mxlCreateFlowReader`. There are no options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlCreateFlowReader(
    handle: ObjectHandle<Instance>,
    id: *const c_char,
    _options: *const c_char,
    reader: *mut ObjectHandle<Reader>,
) -> c_int {
    status(|| {
        let place = out(reader)?;
        place.set(instance(handle)?.read(flow_id(id)?)?);
        Ok(())
    })
}

/// `mxlReleaseFlowReader`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlReleaseFlowReader(
    handle: ObjectHandle<Instance>,
    reader: ObjectHandle<Reader>,
) -> c_int {
    status(|| {
        let mut open = instance(handle)?.open();
        if let Some(gone) = give_back(&mut open.readers, reader)? {
            open.groups.iter().for_each(|group| group.object.remove(&gone));
            drop(open);
        }
        Ok(())
    })
}

/// `mxlCreateFlowWriter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlCreateFlowWriter(
    handle: ObjectHandle<Instance>,
    definition: *const c_char,
    given: *const c_char,
    writer: *mut ObjectHandle<Writer>,
    config: *mut Config,
    created: *mut bool,
) -> c_int {
    status(|| {
        let place = out(writer)?;
        let (made, found, is_new) = instance(handle)?.write(text(definition)?, options(given)?)?;
        place.set(made);
        border::maybe(config, found);
        border::maybe(created, is_new);
        Ok(())
    })
}

/// `mxlReleaseFlowWriter`. The last writer of a flow, in all processes, deletes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlReleaseFlowWriter(
    handle: ObjectHandle<Instance>,
    writer: ObjectHandle<Writer>,
) -> c_int {
    status(|| {
        let mut open = instance(handle)?.open();
        // Dropped under the lock: a concurrent request for a writer must not open a flow that is about to be
        // deleted.
        drop(give_back(&mut open.writers, writer)?);
        Ok(())
    })
}

/// `mxlCreateFlowSynchronizationGroup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlCreateFlowSynchronizationGroup(
    handle: ObjectHandle<Instance>,
    group: *mut ObjectHandle<Group>,
) -> c_int {
    status(|| {
        let place = out(group)?;
        place.set(keep(&mut instance(handle)?.open().groups, Object::new(Group::default())));
        Ok(())
    })
}

/// `mxlReleaseFlowSynchronizationGroup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlReleaseFlowSynchronizationGroup(
    handle: ObjectHandle<Instance>,
    group: ObjectHandle<Group>,
) -> c_int {
    status(|| {
        let mut open = instance(handle)?.open();
        drop(give_back(&mut open.groups, group)?);
        Ok(())
    })
}
