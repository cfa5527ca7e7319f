//! Readers.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use mxl::{Domain, Error, FlowInfo, GrainReader, Runtime, SampleReader, Status, Uuid, Wait};

use crate::types::{BufferSlice, Config, GrainHeader, Info, MultiBufferSlice, RuntimeInfo};
use mxl_ffi::border::{Outcome, out, status};
use mxl_ffi::object::{Kind, Object, magics};

/// The object behind `mxlFlowReader`.
pub enum Reader {
    /// A reader of video or ancillary data.
    Grains(Arc<GrainReader>),
    /// A reader of audio.
    Samples(Arc<SampleReader>),
}

impl Kind for Reader {
    const MAGIC: u64 = magics::READER;
}

impl Reader {
    pub(crate) fn open(domain: &Domain, id: Uuid) -> Result<Self, Error> {
        let (info, _) = domain.info(id)?;
        if info.is_discrete() {
            return domain.read_grains(id).map(|reader| Self::Grains(Arc::new(reader)));
        }
        domain.read_samples(id).map(|reader| Self::Samples(Arc::new(reader)))
    }

    pub(crate) fn id(&self) -> Uuid {
        self.info().id()
    }

    pub(crate) fn is_current(&self) -> bool {
        match self {
            Self::Grains(reader) => reader.is_current(),
            Self::Samples(reader) => reader.is_current(),
        }
    }

    fn info(&self) -> &FlowInfo {
        match self {
            Self::Grains(reader) => reader.info(),
            Self::Samples(reader) => reader.info(),
        }
    }

    fn runtime(&self) -> Result<RuntimeInfo, Error> {
        let (runtime, intact) = match self {
            Self::Grains(reader) => (reader.runtime(), reader.intact()),
            Self::Samples(reader) => (reader.runtime(), reader.intact()),
        };
        intact?;
        let Runtime { head, last_write, last_read } = runtime;
        Ok(RuntimeInfo { head, last_write, last_read, reserved: [0; 40] })
    }
}

/// The reader behind a C handle.
///
/// # Errors
/// [`Status::InvalidReader`] for null and for a handle that is not a reader.
pub(crate) fn reader<'a>(handle: *const Object<Reader>) -> Outcome<&'a Reader> {
    Object::get(handle).ok_or_else(|| Status::InvalidReader.into())
}

fn grains<'a>(handle: *const Object<Reader>) -> Outcome<&'a Arc<GrainReader>> {
    match reader(handle)? {
        Reader::Grains(reader) => Ok(reader),
        Reader::Samples(_) => Err(Status::InvalidReader.into()),
    }
}

fn samples<'a>(handle: *const Object<Reader>) -> Outcome<&'a Arc<SampleReader>> {
    match reader(handle)? {
        Reader::Samples(reader) => Ok(reader),
        Reader::Grains(_) => Err(Status::InvalidReader.into()),
    }
}

/// `mxlFlowReaderGetInfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetInfo(handle: *const Object<Reader>, info: *mut Info) -> c_int {
    status(|| {
        let place = out(info)?;
        let reader = reader(handle)?;
        let config = reader.info().config;
        let size = size_of::<Info>() as u32;
        let version = mxl::layout::DATA_VERSION;
        let runtime = reader.runtime()?;
        place.set(Info { version, size, config, runtime, reserved: [0; 1784] });
        Ok(())
    })
}

/// `mxlFlowReaderGetConfigInfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetConfigInfo(
    handle: *const Object<Reader>,
    info: *mut Config,
) -> c_int {
    status(|| {
        let place = out(info)?;
        place.set(reader(handle)?.info().config);
        Ok(())
    })
}

/// `mxlFlowReaderGetRuntimeInfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetRuntimeInfo(
    handle: *const Object<Reader>,
    info: *mut RuntimeInfo,
) -> c_int {
    status(|| {
        let place = out(info)?;
        place.set(reader(handle)?.runtime()?);
        Ok(())
    })
}

/// The places for a grain's results.
struct GrainPlaces {
    info: *mut GrainHeader,
    payload: *mut *mut u8,
}

fn get_grain(
    handle: *const Object<Reader>,
    index: u64,
    slices: u16,
    wait: Wait,
    places: &GrainPlaces,
) -> Outcome {
    let (info, payload) = (out(places.info)?, out(places.payload)?);
    let reader = grains(handle)?;
    let grain = match reader.read_slices(index, slices, wait) {
        // The writer has opened the next grain in the slot of the oldest one. The C++ SDK hands out that slot as it is,
        // and a client that fell behind goes on from the index in its header. Here it gets that grain once it is
        // committed. "Too late" would repeat for as long as the writer keeps a grain open.
        Err(error @ Error::TooLate { .. }) => match reader.successor(index) {
            Some(next) => reader.read_slices(next, slices, wait)?,
            None => return Err(error.into()),
        },
        other => other?,
    };
    info.fill(|info| grain.header_into(info));
    payload.set(grain.as_ptr().cast_mut());
    // The check comes last: the header was copied after the read.
    Ok(reader.intact()?)
}

/// `mxlFlowReaderGetGrain`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetGrain(
    handle: *const Object<Reader>,
    index: u64,
    timeout_ns: u64,
    info: *mut GrainHeader,
    payload: *mut *mut u8,
) -> c_int {
    let wait = Wait::For(Duration::from_nanos(timeout_ns));
    status(|| get_grain(handle, index, u16::MAX, wait, &GrainPlaces { info, payload }))
}

/// `mxlFlowReaderGetGrainSlice`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetGrainSlice(
    handle: *const Object<Reader>,
    index: u64,
    min_valid_slices: u16,
    timeout_ns: u64,
    info: *mut GrainHeader,
    payload: *mut *mut u8,
) -> c_int {
    let wait = Wait::For(Duration::from_nanos(timeout_ns));
    status(|| get_grain(handle, index, min_valid_slices, wait, &GrainPlaces { info, payload }))
}

/// `mxlFlowReaderGetGrainNonBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetGrainNonBlocking(
    handle: *const Object<Reader>,
    index: u64,
    info: *mut GrainHeader,
    payload: *mut *mut u8,
) -> c_int {
    status(|| get_grain(handle, index, u16::MAX, Wait::Not, &GrainPlaces { info, payload }))
}

/// `mxlFlowReaderGetGrainSliceNonBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetGrainSliceNonBlocking(
    handle: *const Object<Reader>,
    index: u64,
    min_valid_slices: u16,
    info: *mut GrainHeader,
    payload: *mut *mut u8,
) -> c_int {
    status(|| get_grain(handle, index, min_valid_slices, Wait::Not, &GrainPlaces { info, payload }))
}

/// `mxlFlowReaderGetMaxReadLengthSamples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetMaxReadLengthSamples(
    handle: *const Object<Reader>,
    length: *mut usize,
) -> c_int {
    status(|| {
        let place = out(length)?;
        place.set(samples(handle)?.max_read() as usize);
        Ok(())
    })
}

fn get_samples(
    handle: *const Object<Reader>,
    index: u64,
    count: usize,
    wait: Wait,
    slices: *mut MultiBufferSlice,
) -> Outcome {
    let place = out(slices)?;
    let reader = samples(handle)?;
    let samples = reader.read(index, count as u64, wait)?;
    let fragments = samples.pieces(0).map(|(from, size)| BufferSlice { pointer: from.cast_mut(), size });
    place.set(MultiBufferSlice { fragments, stride: samples.stride(), count: reader.channels() as usize });
    Ok(())
}

/// `mxlFlowReaderGetSamples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetSamples(
    handle: *const Object<Reader>,
    index: u64,
    count: usize,
    timeout_ns: u64,
    slices: *mut MultiBufferSlice,
) -> c_int {
    status(|| get_samples(handle, index, count, Wait::For(Duration::from_nanos(timeout_ns)), slices))
}

/// `mxlFlowReaderGetSamplesNonBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowReaderGetSamplesNonBlocking(
    handle: *const Object<Reader>,
    index: u64,
    count: usize,
    slices: *mut MultiBufferSlice,
) -> c_int {
    status(|| get_samples(handle, index, count, Wait::Not, slices))
}
