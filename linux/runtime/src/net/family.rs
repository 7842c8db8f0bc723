//! The family of a connected socket, which decides how it is received from.

#[derive(Clone, Copy)]
pub(crate) enum Family {
    Tcp,
    Unix,
}
