//! The Kerberos library of the system. The code in this file loads the library when a client first needs it, so that
//! programs without Kerberos do not need the library. The types of this file own the objects of the library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result, Status};

/// The libraries of MIT Kerberos and of Heimdal.
const LIBRARIES: [&CStr; 2] = [c"libgssapi_krb5.so.2", c"libgssapi.so.3"];

/// The object identifiers of RFC 2743 and RFC 1964, in the encoding of ASN.1: the mechanism Kerberos 5, and the name of a
/// Kerberos principal.
const KERBEROS: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
const PRINCIPAL_NAME: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01";

const INITIATE: c_int = 1;
const INDEFINITE: u32 = u32::MAX;
const MUTUAL: u32 = 2;
const INTEGRITY: u32 = 32;
const CONTINUE_NEEDED: u32 = 1;
/// The part of a status that contains an error.
const ERROR_MASK: u32 = 0xffff_0000;
const UNSPECIFIED_FAILURE: u32 = 13 << 16;
const CREDENTIALS_EXPIRED: u32 = 11 << 16;
const MAJOR_STATUS: c_int = 1;
const MINOR_STATUS: c_int = 2;
/// The maximum number of messages for one status.
const MAX_MESSAGES: usize = 8;

#[repr(C)]
struct Buffer {
    length: usize,
    value: *mut c_void,
}

#[repr(C)]
struct Oid {
    length: u32,
    elements: *mut c_void,
}

#[repr(C)]
struct OidSet {
    count: usize,
    elements: *mut Oid,
}

#[repr(C)]
struct KeyValue {
    key: *const c_char,
    value: *const c_char,
}

#[repr(C)]
struct KeyValueSet {
    count: u32,
    elements: *mut KeyValue,
}

/// A name, a credential or a context.
type Object = *mut c_void;
type Release = unsafe extern "C" fn(*mut u32, *mut Object) -> u32;
type ReleaseBuffer = unsafe extern "C" fn(*mut u32, *mut Buffer) -> u32;
type ImportName = unsafe extern "C" fn(*mut u32, *mut Buffer, *mut Oid, *mut Object) -> u32;
type AcquireCredFrom = unsafe extern "C" fn(
    *mut u32,
    Object,
    u32,
    *mut OidSet,
    c_int,
    *const KeyValueSet,
    *mut Object,
    *mut *mut OidSet,
    *mut u32,
) -> u32;
type InquireCred = unsafe extern "C" fn(*mut u32, Object, *mut Object, *mut u32, *mut c_int, *mut *mut OidSet) -> u32;
type InitSecContext = unsafe extern "C" fn(
    *mut u32,
    Object,
    *mut Object,
    Object,
    *mut Oid,
    u32,
    u32,
    *mut c_void,
    *mut Buffer,
    *mut *mut Oid,
    *mut Buffer,
    *mut u32,
    *mut u32,
) -> u32;
type DeleteSecContext = unsafe extern "C" fn(*mut u32, *mut Object, *mut Buffer) -> u32;
type Wrap = unsafe extern "C" fn(*mut u32, Object, c_int, u32, *mut Buffer, *mut c_int, *mut Buffer) -> u32;
type Unwrap = unsafe extern "C" fn(*mut u32, Object, *mut Buffer, *mut Buffer, *mut c_int, *mut u32) -> u32;
type DisplayStatus = unsafe extern "C" fn(*mut u32, u32, c_int, *mut Oid, *mut u32, *mut Buffer) -> u32;

/// The functions of the library.
pub(crate) struct GssLibrary {
    import_name: ImportName,
    /// Heimdal before version 8 does not have this function.
    acquire_cred_from: Option<AcquireCredFrom>,
    inquire_cred: InquireCred,
    init_sec_context: InitSecContext,
    delete_sec_context: DeleteSecContext,
    wrap: Wrap,
    unwrap: Unwrap,
    display_status: DisplayStatus,
    release_name: Release,
    release_cred: Release,
    release_buffer: ReleaseBuffer,
}

impl GssLibrary {
    /// Loads the library, unless this process has loaded it before.
    ///
    /// Errors: UNSUPPORTED if this machine does not have the library.
    pub(crate) fn load() -> Result<&'static Self> {
        static LIBRARY: OnceLock<GssLibrary> = OnceLock::new();
        match LIBRARY.get() {
            Some(library) => Ok(library),
            None => Self::find(&LIBRARIES).map(|library| LIBRARY.get_or_init(|| library)),
        }
    }

    fn find(names: &[&CStr]) -> Result<Self> {
        let mut causes = String::new();
        for name in names {
            // SAFETY: the name ends with NUL. The library never removes the loaded object, so its functions remain.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            let found = if handle.is_null() { Err(last_dl_error()) } else { Self::of(handle) };
            match found {
                Ok(library) => return Ok(library),
                Err(cause) => append(&mut causes, &cause),
            }
        }
        let message = format!(
            "sasl.mechanism = gssapi needs the Kerberos library of the system: install the package libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat) ({causes})"
        );
        Err(Error::new(Status::Unsupported, message))
    }

    fn of(handle: *mut c_void) -> std::result::Result<Self, String> {
        // SAFETY: RFC 2744 and the headers of both libraries declare the functions with these types.
        unsafe {
            Ok(Self {
                import_name: symbol(handle, c"gss_import_name")?,
                acquire_cred_from: symbol(handle, c"gss_acquire_cred_from").ok(),
                inquire_cred: symbol(handle, c"gss_inquire_cred")?,
                init_sec_context: symbol(handle, c"gss_init_sec_context")?,
                delete_sec_context: symbol(handle, c"gss_delete_sec_context")?,
                wrap: symbol(handle, c"gss_wrap")?,
                unwrap: symbol(handle, c"gss_unwrap")?,
                display_status: symbol(handle, c"gss_display_status")?,
                release_name: symbol(handle, c"gss_release_name")?,
                release_cred: symbol(handle, c"gss_release_cred")?,
                release_buffer: symbol(handle, c"gss_release_buffer")?,
            })
        }
    }

    /// Returns the texts of the library for the status of a call.
    fn describe(&self, major: u32, minor: u32) -> String {
        let mut texts = String::new();
        // The text of an unspecified failure only refers to the minor status.
        if major & ERROR_MASK != UNSPECIFIED_FAILURE {
            self.append_texts(&mut texts, major, MAJOR_STATUS);
        }
        if minor != 0 {
            self.append_texts(&mut texts, minor, MINOR_STATUS);
        }
        if texts.is_empty() {
            self.append_texts(&mut texts, major, MAJOR_STATUS);
        }
        texts
    }

    fn append_texts(&self, texts: &mut String, status: u32, kind: c_int) {
        let mut more = 0;
        let mut mechanism = oid(KERBEROS);
        for _ in 0..MAX_MESSAGES {
            let (mut ignored, mut text) = (0, LibraryBuffer::new(self));
            // SAFETY: all pointers are valid during the call, and `text` releases the result.
            let result = unsafe {
                (self.display_status)(&mut ignored, status, kind, &mut mechanism, &mut more, &mut text.buffer)
            };
            if result & ERROR_MASK != 0 {
                return;
            }
            append(texts, &String::from_utf8_lossy(text.bytes()));
            if more == 0 {
                return;
            }
        }
    }

    fn check(&self, major: u32, minor: u32) -> std::result::Result<(), String> {
        if major & ERROR_MASK == 0 { Ok(()) } else { Err(self.describe(major, minor)) }
    }
}

/// Appends a text to others.
fn append(texts: &mut String, text: &str) {
    if !texts.is_empty() {
        texts.push_str("; ");
    }
    texts.push_str(text);
}

/// Returns a function of a library.
///
/// # Safety
///
/// `F` must be the type of the function.
unsafe fn symbol<F>(handle: *mut c_void, name: &CStr) -> std::result::Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = address(handle, name)?;
    // SAFETY: the caller guarantees the type, which has the size of a pointer.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

fn address(handle: *mut c_void, name: &CStr) -> std::result::Result<*mut c_void, String> {
    // SAFETY: the handle is that of a loaded library, and the name ends with NUL.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() { Err(last_dl_error()) } else { Ok(address) }
}

fn last_dl_error() -> String {
    // SAFETY: the function has no preconditions. The text is valid until the next call on this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no cause is known".to_owned();
    }
    // SAFETY: the text ends with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The library does not change object identifiers.
fn oid(bytes: &'static [u8]) -> Oid {
    Oid { length: u32::try_from(bytes.len()).unwrap_or_default(), elements: bytes.as_ptr().cast_mut().cast() }
}

/// The library does not change its inputs.
fn input(bytes: &[u8]) -> Buffer {
    Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// A buffer that the library has allocated.
struct LibraryBuffer<'a> {
    library: &'a GssLibrary,
    buffer: Buffer,
}

impl<'a> LibraryBuffer<'a> {
    fn new(library: &'a GssLibrary) -> Self {
        Self { library, buffer: Buffer { length: 0, value: ptr::null_mut() } }
    }

    fn bytes(&self) -> &[u8] {
        if self.buffer.value.is_null() {
            return &[];
        }
        // SAFETY: the library has filled the buffer.
        unsafe { std::slice::from_raw_parts(self.buffer.value.cast(), self.buffer.length) }
    }

    fn to_token(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.bytes().to_vec())
    }
}

impl Drop for LibraryBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the library has allocated the buffer, or the buffer is empty.
        unsafe { (self.library.release_buffer)(&mut 0, &mut self.buffer) };
    }
}

/// The name of a Kerberos principal.
pub(crate) struct GssName {
    library: &'static GssLibrary,
    name: Object,
}

impl GssName {
    /// Imports the name of a principal. The library looks up no host name for it.
    pub(crate) fn new(library: &'static GssLibrary, principal: &str) -> std::result::Result<Self, String> {
        let (mut minor, mut name) = (0, Self { library, name: ptr::null_mut() });
        // SAFETY: all pointers are valid during the call.
        let major = unsafe {
            (library.import_name)(
                &mut minor,
                &mut input(principal.as_bytes()),
                &mut oid(PRINCIPAL_NAME),
                &mut name.name,
            )
        };
        library.check(major, minor).map(|()| name)
    }
}

impl Drop for GssName {
    fn drop(&mut self) {
        if !self.name.is_null() {
            // SAFETY: this object owns the name.
            unsafe { (self.library.release_name)(&mut 0, &mut self.name) };
        }
    }
}

/// The credentials of the client. Without any setting, the library uses its default credentials.
pub(crate) struct GssCredentials {
    library: &'static GssLibrary,
    credentials: Object,
}

impl GssCredentials {
    /// Acquires credentials. `stores` contains names and values of credential stores, for example `ccache`.
    pub(crate) fn acquire(
        library: &'static GssLibrary,
        principal: Option<&GssName>,
        stores: &[(&CStr, CString)],
    ) -> std::result::Result<Self, String> {
        let mut credentials = Self { library, credentials: ptr::null_mut() };
        let Some(acquire) = library.acquire_cred_from else {
            return match (principal, stores) {
                (None, []) => Ok(credentials),
                _ => Err("the Kerberos library has no gss_acquire_cred_from, which sasl.principal, sasl.keytab and sasl.ccache need".to_owned()),
            };
        };
        let mut mechanism = oid(KERBEROS);
        let mut mechanisms = OidSet { count: 1, elements: &mut mechanism };
        let mut elements: Vec<KeyValue> =
            stores.iter().map(|(key, value)| KeyValue { key: key.as_ptr(), value: value.as_ptr() }).collect();
        let count = u32::try_from(elements.len()).unwrap_or_default();
        let set = KeyValueSet { count, elements: elements.as_mut_ptr() };
        let mut minor = 0;
        // SAFETY: all pointers are null or valid during the call. The library copies what it needs.
        let major = unsafe {
            acquire(
                &mut minor,
                principal.map_or(ptr::null_mut(), |principal| principal.name),
                INDEFINITE,
                &mut mechanisms,
                INITIATE,
                &set,
                &mut credentials.credentials,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        library.check(major, minor).map(|()| credentials)
    }
}

impl Drop for GssCredentials {
    fn drop(&mut self) {
        if !self.credentials.is_null() {
            // SAFETY: this object owns the credentials.
            unsafe { (self.library.release_cred)(&mut 0, &mut self.credentials) };
        }
    }
}

/// A security context between the client and a server.
pub(crate) struct GssContext {
    credentials: GssCredentials,
    server: GssName,
    context: Object,
}

// SAFETY: the library allows the use of an object on any thread, if only one thread uses the object at a time.
unsafe impl Send for GssContext {}

/// The result of a step that establishes a context.
pub(crate) struct GssStep {
    pub(crate) token: Zeroizing<Vec<u8>>,
    /// True if the context is complete and the server has proved its identity.
    pub(crate) is_complete: bool,
}

impl GssContext {
    pub(crate) fn new(credentials: GssCredentials, server: GssName) -> Self {
        Self { credentials, server, context: ptr::null_mut() }
    }

    /// Returns whether the ticket of the client has expired.
    pub(crate) fn has_expired(&self) -> bool {
        let GssCredentials { library, credentials } = self.credentials;
        let (mut lifetime, none) = (INDEFINITE, ptr::null_mut());
        // SAFETY: all pointers are null or valid during the call.
        let major = unsafe {
            (library.inquire_cred)(&mut 0, credentials, none, &mut lifetime, ptr::null_mut(), ptr::null_mut())
        };
        lifetime == 0 || major & ERROR_MASK == CREDENTIALS_EXPIRED
    }

    /// Makes the next token from a token of the server. The first call, without a token, can ask a KDC and block.
    pub(crate) fn step(&mut self, token: Option<&[u8]>) -> std::result::Result<GssStep, String> {
        let library = self.server.library;
        let (mut minor, mut flags, mut output) = (0, 0, LibraryBuffer::new(library));
        let mut received = token.map(input);
        // SAFETY: all pointers are null or valid during the call, and `output` releases the token.
        let major = unsafe {
            (library.init_sec_context)(
                &mut minor,
                self.credentials.credentials,
                &mut self.context,
                self.server.name,
                &mut oid(KERBEROS),
                MUTUAL | INTEGRITY,
                0,
                ptr::null_mut(),
                received.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
                ptr::null_mut(),
                &mut output.buffer,
                &mut flags,
                ptr::null_mut(),
            )
        };
        library.check(major, minor)?;
        let is_complete = major & CONTINUE_NEEDED == 0;
        if is_complete && flags & (MUTUAL | INTEGRITY) != MUTUAL | INTEGRITY {
            return Err("the server has not proved its identity".to_owned());
        }
        Ok(GssStep { token: output.to_token(), is_complete })
    }

    /// Checks and unpacks a message of the server.
    pub(crate) fn unwrap(&self, message: &[u8]) -> std::result::Result<Zeroizing<Vec<u8>>, String> {
        let library = self.server.library;
        let (mut minor, mut output) = (0, LibraryBuffer::new(library));
        // SAFETY: all pointers are null or valid during the call, and `output` releases the content.
        let major = unsafe {
            (library.unwrap)(
                &mut minor,
                self.context,
                &mut input(message),
                &mut output.buffer,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        library.check(major, minor).map(|()| output.to_token())
    }

    /// Packs a message for the server, without encryption.
    pub(crate) fn wrap(&self, content: &[u8]) -> std::result::Result<Zeroizing<Vec<u8>>, String> {
        let library = self.server.library;
        let (mut minor, mut output) = (0, LibraryBuffer::new(library));
        // SAFETY: all pointers are null or valid during the call, and `output` releases the message.
        let major = unsafe {
            (library.wrap)(&mut minor, self.context, 0, 0, &mut input(content), ptr::null_mut(), &mut output.buffer)
        };
        library.check(major, minor).map(|()| output.to_token())
    }
}

impl Drop for GssContext {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: this object owns the context.
            unsafe { (self.server.library.delete_sec_context)(&mut 0, &mut self.context, ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    const MISSING: &CStr = c"libzklock-no-such-library.so.2";

    /// A library that this process has loaded before is found by the name that the library contains. As in Heimdal before
    /// version 8, a function is missing.
    #[test]
    fn library_of_heimdal_is_found_if_that_of_mit_is_missing() {
        let directory = std::env::temp_dir().join(format!("zklock-gss-{}", std::process::id()));
        let (source, file) = (directory.join("stub.c"), directory.join("stub.so"));
        let functions = "import_name inquire_cred init_sec_context delete_sec_context wrap unwrap display_status release_name release_cred release_buffer";
        let functions = functions.split(' ').map(|name| format!("unsigned gss_{name}(void) {{ return 0; }}\n"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(&source, functions.collect::<String>()).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wl,-soname,libgssapi.so.3", "-o"]).arg(&file).arg(&source);
        assert!(cc.status().unwrap().success());
        let path = CString::new(file.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends with NUL, and the library has no code that runs when it is loaded.
        assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
        fs::remove_dir_all(&directory).unwrap();
        let library = Box::leak(Box::new(GssLibrary::find(&[MISSING, LIBRARIES[1]]).unwrap()));
        GssCredentials::acquire(library, None, &[]).unwrap();
        let error = GssCredentials::acquire(library, None, &[(c"ccache", c"x".into())]).err().unwrap();
        assert!(error.contains("has no gss_acquire_cred_from"), "{error}");
    }

    #[test]
    fn missing_library_is_unsupported_and_names_the_package() {
        let error = GssLibrary::find(&[MISSING, c"libc.so.6"]).err().unwrap();
        assert_eq!(error.status(), Status::Unsupported);
        for part in ["install the package libgssapi-krb5-2", "libzklock-no-such-library.so.2", "gss_import_name"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
}
