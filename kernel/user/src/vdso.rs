//! Calls the functions of the vDSO, through a table that the kernel has filled in.

use core::mem::transmute;

use os_abi::vdso_functions;

use crate::info::info;

macro_rules! word {
    ($argument:ident) => {
        u64
    };
}

macro_rules! bindings {
    ($($name:ident($($argument:ident),*);)*) => {
        /// Index of each function in the table.
        #[allow(non_camel_case_types, reason = "named like the functions")]
        enum Entry {
            $($name),*
        }

        $(
            pub(crate) fn $name($($argument: u64),*) -> u64 {
                let address = info().vdso[Entry::$name as usize];
                // SAFETY: the kernel has put the function of this name at this place of the table,
                // and the declaration that both sides are generated from gives its type. Without a
                // vDSO the address is 0 and the call would end the process; `start` has checked
                // that there is one.
                let function = unsafe {
                    transmute::<u64, extern "C" fn($(word!($argument)),*) -> u64>(address)
                };
                function($($argument),*)
            }
        )*
    };
}

vdso_functions!(bindings);
