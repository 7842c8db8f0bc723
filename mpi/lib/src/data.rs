//! Defines the data that can be sent, that is, the types of items, and the buffers that an
//! operation owns while it runs.
//!
//! An item has any type that implements bytemuck's `Pod`. Such a type has no padding and no invalid
//! bit pattern, so any bytes from another rank are a valid value. Numbers are sent as MPI's own
//! types, which reductions need. Other items are sent as blocks of bytes, so all ranks must have
//! the same byte order.

use std::any::TypeId;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

use mpi_sys as sys;

use crate::error::{Error, Result, check};

/// A type whose values can be sent.
///
/// ```
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     charge: i64,
/// }
///
/// fn is_datatype<T: upshift_mpi::Datatype>() {}
/// is_datatype::<Particle>();
/// ```
pub trait Datatype: bytemuck::Pod + Send + Sync {}
impl<T: bytemuck::Pod + Send + Sync> Datatype for T {}

/// A type that can be reduced.
pub trait Number: Datatype + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($type:ty => $mpi:ident),+ $(,)?) => {
        $(impl sealed::Sealed for $type {}
        impl Number for $type {})+

        fn number(id: TypeId) -> Option<sys::MPI_Datatype> {
            // SAFETY: the library defines these values as constants.
            unsafe {
                $(if id == TypeId::of::<$type>() {
                    return Some(sys::$mpi);
                })+
            }
            None
        }
    };
}

numbers! {
    u8 => RSMPI_UINT8_T, u16 => RSMPI_UINT16_T, u32 => RSMPI_UINT32_T, u64 => RSMPI_UINT64_T,
    i8 => RSMPI_INT8_T, i16 => RSMPI_INT16_T, i32 => RSMPI_INT32_T, i64 => RSMPI_INT64_T,
    usize => RSMPI_UINT64_T, isize => RSMPI_INT64_T,
    f32 => RSMPI_FLOAT, f64 => RSMPI_DOUBLE,
}

const _: () = assert!(size_of::<usize>() == 8, "ranks are 64-bit programs");

/// MPI's types for items other than numbers, one per Rust type. They live until MPI is finalised.
#[derive(Default)]
pub(crate) struct Types(HashMap<TypeId, sys::MPI_Datatype>);

impl Types {
    /// Returns MPI's type for `T`, which is created on first use. This thread must have the right
    /// to call MPI.
    pub(crate) fn get<T: Datatype>(&mut self) -> Result<sys::MPI_Datatype> {
        const { assert!(size_of::<T>() > 0, "an item has at least one byte") };
        let id = TypeId::of::<T>();
        if let Some(datatype) = number(id).or_else(|| self.0.get(&id).copied()) {
            return Ok(datatype);
        }
        let size = count(size_of::<T>())?;
        // SAFETY: the out-parameter has the right type; `UINT8_T` is a constant of the library.
        let datatype = unsafe {
            let mut datatype = sys::RSMPI_DATATYPE_NULL;
            check(sys::MPI_Type_contiguous(
                size,
                sys::RSMPI_UINT8_T,
                &mut datatype,
            ))?;
            check(sys::MPI_Type_commit(&mut datatype))?;
            datatype
        };
        self.0.insert(id, datatype);
        Ok(datatype)
    }
}

pub(crate) fn count(items: usize) -> Result<c_int> {
    c_int::try_from(items).map_err(|_| Error::TooLong(items))
}

/// A buffer that can be sent without a copy; it is returned when the operation is complete.
///
/// # Safety
/// `items` must return the same memory even after the owner has been moved. Nothing may write to
/// this memory while an operation holds the owner without accessing it.
pub unsafe trait SendBuf: Send + 'static {
    /// The type of its items.
    type Item: Datatype;
    /// Returns the items.
    fn items(&self) -> &[Self::Item];
}

// SAFETY: the items of a vector keep their address when it is moved.
unsafe impl<T: Datatype> SendBuf for Vec<T> {
    type Item = T;
    fn items(&self) -> &[T] {
        self
    }
}

// SAFETY: the items are immutable while several owners share them, and keep their address while the
// operation holds a reference.
unsafe impl<T: Datatype> SendBuf for Arc<[T]> {
    type Item = T;
    fn items(&self) -> &[T] {
        self
    }
}

// SAFETY: as above. `Arc::get_mut` fails during the operation, since it succeeds only for the sole
// reference, and the operation holds one.
unsafe impl<T: Datatype> SendBuf for Arc<Vec<T>> {
    type Item = T;
    fn items(&self) -> &[T] {
        self
    }
}

// SAFETY: the items are immutable until the program ends.
unsafe impl<T: Datatype> SendBuf for &'static [T] {
    type Item = T;
    fn items(&self) -> &[T] {
        self
    }
}

/// The operation by which [`reduce`](crate::Comm::reduce) combines two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Product,
    /// The smaller number.
    Min,
    /// The greater number.
    Max,
    /// The bits that are set in both; integers only.
    And,
    /// The bits that are set in either; integers only.
    Or,
    /// The bits that are set in exactly one; integers only.
    Xor,
}

impl Op {
    pub(crate) fn handle(self) -> sys::MPI_Op {
        // SAFETY: the library defines these values as constants.
        unsafe {
            match self {
                Op::Sum => sys::RSMPI_SUM,
                Op::Product => sys::RSMPI_PROD,
                Op::Min => sys::RSMPI_MIN,
                Op::Max => sys::RSMPI_MAX,
                Op::And => sys::RSMPI_BAND,
                Op::Or => sys::RSMPI_BOR,
                Op::Xor => sys::RSMPI_BXOR,
            }
        }
    }
}
