//! Parses the arguments of the attributes, and converts them to method calls on `upshift::Builder`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitInt, Token};

const KNOWN: &str = "`vcpus = N`, `level = N`, `preemption`, `driver = \"readiness\"` and `tokio = false` \
                     are known; other settings need `upshift::Runtime::builder()`";

/// Maximum number of vCPUs of a runtime, the same as `upshift_core::MAX_VCPUS`.
const MAX_VCPUS: u64 = 256;

/// Number of the least urgent level.
const MAX_LEVEL: u64 = 63;

/// All arguments of an attribute. Their tokens are method calls on a builder.
pub(crate) struct Arguments(Vec<Argument>);

struct Argument {
    name: Ident,
    call: TokenStream,
}

impl Arguments {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|argument| argument.name == name)
    }
}

impl ToTokens for Arguments {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(self.0.iter().map(|argument| argument.call.clone()));
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Arguments> {
        let list = Punctuated::<Argument, Token![,]>::parse_terminated(input)?;
        let mut arguments = Arguments(Vec::new());
        for argument in list {
            let name = &argument.name;
            if arguments.has(&name.to_string()) {
                return Err(Error::new(name.span(), format!("`{name}` is given twice")));
            }
            arguments.0.push(argument);
        }
        Ok(arguments)
    }
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Argument> {
        let name: Ident = input.parse()?;
        let value = if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            Some(input.parse()?)
        } else {
            None
        };
        let call = builder_call(&name, value.as_ref())?;
        Ok(Argument { name, call })
    }
}

/// Returns the builder's method call for an argument.
fn builder_call(name: &Ident, value: Option<&Expr>) -> syn::Result<TokenStream> {
    let span = value.map_or(name.span(), Spanned::span);
    let needs =
        |example: &str| Error::new(name.span(), format!("`{name}` needs a value: `{example}`"));
    Ok(match name.to_string().as_str() {
        "vcpus" => {
            let value = value.ok_or_else(|| needs("vcpus = 2"))?;
            check_literal(
                value,
                1..=MAX_VCPUS,
                "`vcpus` is a number from 1 to 256, without quotes",
            )?;
            quote_spanned!(span=> .vcpus(#value))
        }
        "level" => {
            let value = value.ok_or_else(|| needs("level = 4"))?;
            check_literal(
                value,
                0..=MAX_LEVEL,
                "`level` is a number from 0 (the most urgent) to 63, without quotes",
            )?;
            quote_spanned!(span=> .main_level(::upshift::Level::at::<{ #value }>()))
        }
        "preemption" => {
            let names = [
                ("off", "Off"),
                ("preferred", "Preferred"),
                ("required", "Required"),
            ];
            let variant = match value {
                None => Ident::new("Preferred", span),
                Some(value) => match literal(value) {
                    Some(Lit::Bool(flag)) if flag.value => Ident::new("Preferred", span),
                    Some(Lit::Bool(_)) => Ident::new("Off", span),
                    _ => find_variant(value, &names)?,
                },
            };
            quote!(.preemption(::upshift::Preemption::#variant))
        }
        "driver" => {
            let value = value.ok_or_else(|| needs("driver = \"readiness\""))?;
            let names = [
                ("auto", "Auto"),
                ("ring", "Ring"),
                ("readiness", "Readiness"),
            ];
            let variant = find_variant(value, &names)?;
            quote!(.driver(::upshift::Driver::#variant))
        }
        "tokio" => {
            let value = value.ok_or_else(|| needs("tokio = false"))?;
            let Some(Lit::Bool(value)) = literal(value) else {
                return Err(Error::new(span, "`tokio` is `true` or `false`"));
            };
            quote_spanned!(name.span()=> .tokio(#value))
        }
        "worker_threads" => {
            return Err(Error::new(name.span(), "use `vcpus` in place of this"));
        }
        "flavor" => {
            let message = "there is no `flavor`: remove it; `vcpus = 1` gives one thread";
            return Err(Error::new(name.span(), message));
        }
        _ => {
            return Err(Error::new(
                name.span(),
                format!("unknown argument `{name}`: {KNOWN}"),
            ));
        }
    })
}

fn literal(value: &Expr) -> Option<&Lit> {
    match value {
        Expr::Lit(ExprLit { lit, .. }) => Some(lit),
        _ => None,
    }
}

/// Checks that a literal is in `range`. Other expressions are accepted here, because the compiler
/// checks their type.
fn check_literal(
    value: &Expr,
    range: std::ops::RangeInclusive<u64>,
    message: &str,
) -> syn::Result<()> {
    let is_in_range = |number: &LitInt| number.base10_parse().is_ok_and(|n| range.contains(&n));
    match value {
        Expr::Unary(_) => Err(Error::new(value.span(), message)),
        _ => match literal(value) {
            None => Ok(()),
            Some(Lit::Int(number)) if is_in_range(number) => Ok(()),
            Some(other) => Err(Error::new(other.span(), message)),
        },
    }
}

/// Returns the variant whose name is the string literal `value`.
fn find_variant(value: &Expr, names: &[(&str, &str)]) -> syn::Result<Ident> {
    let text = match literal(value) {
        Some(Lit::Str(text)) => text.value(),
        _ => String::new(),
    };
    let entry = names.iter().find(|(name, _)| *name == text);
    let Some((_, variant)) = entry else {
        let names: Vec<String> = names.iter().map(|(name, _)| format!("{name:?}")).collect();
        let message = format!("use one of {}", names.join(", "));
        return Err(Error::new(value.span(), message));
    };
    Ok(Ident::new(variant, value.span()))
}
