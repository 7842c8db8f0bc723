//! Expands `#[async_fn]`, which makes the synchronous and the asynchronous form of a system call
//! from one declaration.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Block, Error, Expr, FnArg, Ident, Meta, Pat, PatType, Signature, Token, Type,
    Visibility,
};

/// Suffix of the name of a synchronous function. The macro's name omits the suffix; the name of the
/// asynchronous function has `_async` in its place.
const BLOCKING_SUFFIX: &str = "_blocking";

/// The argument of the attribute: `TYPE = CALL`.
struct AsyncForm {
    future: Type,
    call: Expr,
}

impl Parse for AsyncForm {
    fn parse(input: ParseStream<'_>) -> syn::Result<AsyncForm> {
        let future = input.parse()?;
        input.parse::<Token![=]>()?;
        let call = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok(AsyncForm { future, call })
    }
}

struct Declaration {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    body: Option<Block>,
}

impl Parse for Declaration {
    fn parse(input: ParseStream<'_>) -> syn::Result<Declaration> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature = input.parse()?;
        let body = if input.parse::<Option<Token![;]>>()?.is_some() {
            None
        } else {
            Some(input.parse()?)
        };
        Ok(Declaration {
            attributes,
            visibility,
            signature,
            body,
        })
    }
}

/// A parameter of the declaration.
struct Parameter {
    name: Ident,
    declared: PatType,
    /// Set if the parameter is marked `#[buffer]`: the asynchronous form takes a `Vec<u8>` instead
    /// of a slice.
    is_buffer: bool,
}

impl Parameter {
    fn new(argument: FnArg) -> syn::Result<Parameter> {
        let FnArg::Typed(mut declared) = argument else {
            return Err(Error::new_spanned(
                argument,
                "the function cannot have a `self` parameter",
            ));
        };
        let Pat::Ident(pattern) = &*declared.pat else {
            return Err(Error::new_spanned(
                declared.pat,
                "the parameter must be a plain name: the asynchronous form passes it on",
            ));
        };
        let name = pattern.ident.clone();
        if name == "cid" {
            return Err(Error::new_spanned(
                name,
                "the asynchronous form has `cid` already, after the parameters of the declaration",
            ));
        }
        let attribute_count = declared.attrs.len();
        declared
            .attrs
            .retain(|attribute| !attribute.path().is_ident("buffer"));
        let is_buffer = declared.attrs.len() < attribute_count;
        if is_buffer && !matches!(&*declared.ty, Type::Reference(_)) {
            return Err(Error::new_spanned(
                declared.ty,
                "`#[buffer]` requires a slice: the asynchronous form takes a `Vec<u8>` in its place",
            ));
        }
        Ok(Parameter {
            name,
            declared,
            is_buffer,
        })
    }

    /// Returns the parameter as the asynchronous form declares it.
    fn as_async_parameter(&self) -> TokenStream {
        let (name, declared) = (&self.name, &self.declared);
        match &*declared.ty {
            Type::Reference(slice) if self.is_buffer => {
                let mutability = &slice.mutability;
                quote!(#mutability #name: Vec<u8>)
            }
            _ => declared.to_token_stream(),
        }
    }
}

/// Inserts a paragraph after the first paragraph of the documentation.
fn insert_paragraph(attributes: &[Attribute], paragraph: &str) -> TokenStream {
    let (docs, others): (Vec<_>, Vec<_>) = attributes
        .iter()
        .partition(|attribute| attribute.path().is_ident("doc"));
    let is_blank = |attribute: &&Attribute| match &attribute.meta {
        Meta::NameValue(doc) => {
            matches!(&doc.value, Expr::Lit(text) if text.to_token_stream().to_string() == "\"\"")
        }
        _ => false,
    };
    let end = docs.iter().position(is_blank).unwrap_or(docs.len());
    let (first, rest) = docs.split_at(end);
    quote! {
        #(#first)*
        #[doc = ""]
        #[doc = #paragraph]
        #(#rest)*
        #(#others)*
    }
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    if arguments.is_empty() {
        return Err(Error::new(
            Span::call_site(),
            "the attribute needs the asynchronous form: `#[async_fn(TYPE = CALL)]`",
        ));
    }
    let AsyncForm { future, call } = syn::parse2(arguments)?;
    let Declaration {
        attributes,
        visibility,
        signature,
        body,
    } = syn::parse2(item)?;
    if let Some(token) = signature.asyncness {
        return Err(Error::new_spanned(
            token,
            "remove `async`: this function is the synchronous form",
        ));
    }
    let blocking_name = signature.ident.clone();
    let text = blocking_name.to_string();
    let base = text.strip_suffix(BLOCKING_SUFFIX).unwrap_or(&text);
    let name = Ident::new(base, blocking_name.span());
    let async_name = format_ident!("{base}_async", span = blocking_name.span());
    let hidden = format_ident!("__{base}", span = blocking_name.span());

    let parameters = signature.inputs.iter().cloned().map(Parameter::new);
    let parameters = parameters.collect::<syn::Result<Vec<_>>>()?;
    let names: Vec<_> = parameters.iter().map(|parameter| &parameter.name).collect();
    let declared = parameters.iter().map(|parameter| &parameter.declared);
    let async_parameters = parameters.iter().map(Parameter::as_async_parameter);
    let buffers = parameters.iter().filter(|parameter| parameter.is_buffer);
    let buffers = buffers.map(|parameter| &parameter.name);

    let Signature {
        generics, output, ..
    } = &signature;
    let bounds = &generics.where_clause;
    let body = body.map_or_else(
        || quote!({ <#future>::wait(#call) }),
        Block::into_token_stream,
    );

    let name_list = names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let name_list = name_list.join(", ");
    let name_list_with_cid = match name_list.as_str() {
        "" => "cid".to_owned(),
        name_list => format!("{name_list}, cid"),
    };
    let blocking_docs = insert_paragraph(
        &attributes,
        &format!("Blocks the thread: the synchronous form of [`{base}!`](macro@{base})."),
    );
    let async_docs = insert_paragraph(
        &attributes,
        &format!(
            "Returns at once: the asynchronous form of [`{base}!`](macro@{base}). The coroutine \
             `cid` is woken when the call has completed, and the future returns its result."
        ),
    );
    let docs: Vec<_> = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"))
        .cloned()
        .collect();
    let macro_docs = insert_paragraph(
        &docs,
        &format!(
            "`{base}!({name_list})` blocks the thread ([`{blocking_name}`](fn@{blocking_name})); \
             `{base}!({name_list_with_cid})` is a future of the same result \
             ([`{async_name}`](fn@{async_name}))."
        ),
    );

    Ok(quote! {
        #blocking_docs
        #visibility fn #blocking_name #generics (#(#declared),*) #output #bounds #body

        #async_docs
        #visibility fn #async_name #generics (#(#async_parameters,)* cid: CoroutineId) -> #future
        #bounds {
            <#future>::start(#call, #(#buffers,)* cid)
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! #hidden {
            (#($#names:expr),* $(,)?) => {
                $crate::calls::#blocking_name(#($#names),*)
            };
            (#($#names:expr,)* $cid:expr $(,)?) => {
                $crate::calls::#async_name(#($#names,)* $cid)
            };
        }

        #macro_docs
        #[doc(inline)]
        #visibility use #hidden as #name;
    })
}
