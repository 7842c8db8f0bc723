//! The versions of the loaded library and of its ABI.

/// The version of the ABI that this header describes. It changes when programs must be recompiled.
pub const UPSHIFT_ABI_VERSION: u32 = 1;

/// Returns the version of the library as `major << 16 | minor << 8 | patch`. May be called on any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_version() -> u32 {
    const fn number(text: &str) -> u32 {
        let (bytes, mut index, mut value) = (text.as_bytes(), 0, 0);
        while index < bytes.len() {
            value = value * 10 + (bytes[index] - b'0') as u32;
            index += 1;
        }
        value
    }
    const {
        number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
            | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
            | number(env!("CARGO_PKG_VERSION_PATCH"))
    }
}

/// Returns UPSHIFT_ABI_VERSION of the loaded library. A program that was compiled with another
/// version must not continue. May be called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_abi_version() -> u32 {
    UPSHIFT_ABI_VERSION
}
