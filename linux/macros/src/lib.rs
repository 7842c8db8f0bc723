//! Attribute macros of the runtime.
//!
//! `#[upshift::main]` and `#[upshift::test]` build a runtime and run an `async fn` as its main
//! coroutine. `#[async_fn]` declares both forms of a system call. `arguments` parses the arguments;
//! each mistake is an error at its token.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod arguments;
mod async_fn;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

use arguments::Arguments;

/// Runs an `async fn main` as the main coroutine of a runtime.
///
/// | argument | sets | default |
/// |---|---|---|
/// | `vcpus = N` | `Builder::vcpus` | one per CPU that the process may use |
/// | `level = N` | `Builder::main_level`, 0 to 63; a constant of type `u8` | 32 |
/// | `preemption` | `Builder::preemption(Preemption::Preferred)` | off |
/// | `preemption = "off"`, `"preferred"`, `"required"`, a bool | `Builder::preemption` | off |
/// | `driver = "auto"`, `"ring"` or `"readiness"` | `Builder::driver` | auto |
/// | `tokio = false` | `Builder::tokio`; needs the feature `tokio-rt` | true |
///
/// Other settings need `upshift::Runtime::builder()` in an ordinary `fn main`.
///
/// The generated function returns the value of the body. If the runtime cannot be built, a `main`
/// that returns a `Result` returns the error, and any other `main` panics with the error's message.
///
/// ```ignore
/// #[upshift::main(vcpus = 2, level = 4, preemption, driver = "readiness", tokio = false)]
/// async fn main() -> std::io::Result<()> {
///     Ok(())
/// }
/// ```
#[proc_macro_attribute]
pub fn main(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_or_report(arguments.into(), item.into(), false).into()
}

/// Runs an `async fn` as a test, as the main coroutine of a runtime of its own.
///
/// Takes the arguments of [`main`](macro@main); `vcpus` defaults to 1.
#[proc_macro_attribute]
pub fn test(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_or_report(arguments.into(), item.into(), true).into()
}

/// Declares a system call once, for both of its forms.
///
/// In SharedScheduler (the paper's section 4.3.1, "User Space Modification"), the synchronous and
/// the asynchronous form of a system call are generated from one declaration. Their calls differ in
/// one argument, the coroutine that the completion wakes. From
///
/// ```ignore
/// /// Writes the data of a file to the device.
/// #[async_fn(AsyncCall<op::Fsync> = start_fsync(fd))]
/// pub fn fsync(fd: BorrowedFd<'_>) -> io::Result<()> {
///     retry(|| unsafe { libc::fsync(fd.as_raw_fd()) }).map(drop)
/// }
/// ```
///
/// come three items with the documentation of the declaration:
///
/// | item | effect |
/// |---|---|
/// | `fsync(fd)` | runs the body, which blocks the thread |
/// | `fsync_async(fd, cid)` | returns `<AsyncCall<op::Fsync>>::start(start_fsync(fd), cid)` |
/// | `fsync!(fd)`, `fsync!(fd, cid)` | call the first or the second |
///
/// If the declaration has no body (`pub fn fsync(fd: usize) -> Result<(), Error>;`), the
/// synchronous form starts the same call and waits for it, by `<AsyncCall<…>>::wait(…)`.
///
/// A parameter marked `#[buffer]` is a slice in the synchronous form, which borrows the buffer. In
/// the asynchronous form it is a `Vec<u8>`, which `start(call, buffer, cid)` owns until the call
/// has completed.
///
/// If the name of the function ends in `_blocking`, the other two names omit the suffix.
///
/// The type `CoroutineId` must be in scope. The functions must be in the module `calls` of the
/// crate, or re-exported from there. The macro is defined in the same module as the functions.
#[proc_macro_attribute]
pub fn async_fn(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    async_fn::expand(arguments.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Expands the attribute. On a mistake, returns the error and an empty function, so that the
/// compiler does not also report a missing `main`.
fn expand_or_report(arguments: TokenStream, item: TokenStream, is_test: bool) -> TokenStream {
    let name = syn::parse2::<ItemFn>(item.clone()).map(|function| function.sig.ident);
    expand(arguments, item, is_test).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        let stub = name.ok().map(|name| quote!(fn #name() {}));
        quote!(#error #stub)
    })
}

fn expand(arguments: TokenStream, item: TokenStream, is_test: bool) -> syn::Result<TokenStream> {
    let arguments: Arguments = syn::parse2(arguments)?;
    let ItemFn {
        attrs,
        vis,
        mut sig,
        block,
    } = syn::parse2(item)?;
    if sig.asyncness.take().is_none() {
        return Err(syn::Error::new_spanned(
            sig.fn_token,
            "this attribute requires an `async fn`",
        ));
    }
    if !sig.inputs.is_empty() {
        return Err(syn::Error::new_spanned(
            &sig.inputs,
            "this function cannot have parameters",
        ));
    }
    let vcpus = (is_test && !arguments.has("vcpus")).then(|| quote!(.vcpus(1)));
    let test_attribute = is_test.then(|| quote!(#[test]));
    let unwrap = match &sig.output {
        syn::ReturnType::Type(_, ty) if is_result(ty) => quote!(?),
        _ => quote!(.unwrap_or_else(|error| ::core::panic!("{error}"))),
    };
    Ok(quote! {
        #test_attribute
        #(#attrs)*
        #vis #sig {
            let runtime = ::upshift::Runtime::builder() #vcpus #arguments .build() #unwrap;
            runtime.block_on(async move #block)
        }
    })
}

/// Returns whether the type looks like a `Result`, so that `?` works in its function.
fn is_result(ty: &syn::Type) -> bool {
    match ty {
        syn::Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "Result"),
        _ => false,
    }
}
