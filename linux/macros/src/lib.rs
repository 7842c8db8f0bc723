//! `#[upshift::main]` and `#[upshift::test]`: an `async fn` as the main coroutine.
//!
//! Both build a runtime, run the body as its main coroutine, and take the same
//! arguments: `vcpus = N`, `level = N` (checked by the compiler).

#![cfg_attr(docsrs, feature(doc_cfg))]
use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, ItemFn, Token, parse_macro_input};

struct Setting {
    name: Ident,
    value: Expr,
}

impl Parse for Setting {
    fn parse(input: ParseStream<'_>) -> syn::Result<Setting> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Setting {
            name,
            value: input.parse()?,
        })
    }
}

struct Settings(Punctuated<Setting, Token![,]>);

impl Parse for Settings {
    fn parse(input: ParseStream<'_>) -> syn::Result<Settings> {
        Punctuated::parse_terminated(input).map(Settings)
    }
}

/// Runs an `async fn main` as the main coroutine of a runtime.
///
/// Arguments: `vcpus = N` (default: one per CPU the process may use), `level =
/// N` (0 to 63, default 32), checked by the compiler. What `main` returns is
/// returned; if the runtime cannot be built, a `main` that returns a `Result`
/// returns that error, and any other panics with its message.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let settings = parse_macro_input!(arguments as Settings);
    let function = parse_macro_input!(item as ItemFn);
    expand(&settings, &function, false).unwrap_or_else(|error| error.into_compile_error().into())
}

/// Runs an `async fn` as a test, as the main coroutine of a runtime of its own.
///
/// Takes the arguments of [`main`](macro@main); `vcpus` defaults to 1.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let settings = parse_macro_input!(arguments as Settings);
    let function = parse_macro_input!(item as ItemFn);
    expand(&settings, &function, true).unwrap_or_else(|error| error.into_compile_error().into())
}

fn expand(settings: &Settings, function: &ItemFn, test: bool) -> syn::Result<TokenStream> {
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = function;
    if sig.asyncness.is_none() {
        return Err(syn::Error::new_spanned(
            sig.fn_token,
            "this attribute goes on an `async fn`",
        ));
    }
    if !sig.inputs.is_empty() {
        return Err(syn::Error::new_spanned(
            &sig.inputs,
            "this function takes no arguments",
        ));
    }
    let mut vcpus = test.then(|| quote!(.vcpus(1)));
    let mut level = quote!();
    for Setting { name, value } in &settings.0 {
        if name == "vcpus" {
            vcpus = Some(quote!(.vcpus(#value)));
        } else if name == "level" {
            level = quote!(.main_level(::upshift::Level::at::<{ #value }>()));
        } else {
            return Err(syn::Error::new_spanned(
                name,
                "unknown argument: use `vcpus = N` or `level = N`",
            ));
        }
    }
    let mut sig = sig.clone();
    sig.asyncness = None;
    let test_attribute = test.then(|| quote!(#[test]));
    let output = &sig.output;
    let unwrap = match output {
        syn::ReturnType::Type(_, ty) if is_result(ty) => quote!(?),
        _ => quote!(.unwrap_or_else(|error| ::core::panic!("{error}"))),
    };
    Ok(quote! {
        #test_attribute
        #(#attrs)*
        #vis #sig {
            let runtime = ::upshift::Runtime::builder() #vcpus #level .build() #unwrap;
            runtime.block_on(async move #block)
        }
    }
    .into())
}

/// Does the type look like a `Result`, so that `?` works in its function?
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
