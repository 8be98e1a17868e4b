# Reads include/zklock_ffi.h with Fiddle of Ruby, and holds a lock with operations: hold.rb HEADER LIBRARY SERVERS PATH

require "fiddle/import"

header, library, servers, path = ARGV
DECLARATIONS = File.read(header).gsub(%r{/\*.*?\*/}m, "")
NUMBERS = DECLARATIONS.scan(/^    (ZKL_\w+) = (-?\d+),?$/).to_h { |name, number| [name.to_sym, number.to_i] }
# A handle and a pointer to a callback are pointers for Fiddle.
POINTERS = DECLARATIONS.scan(/^typedef .*\(\*(zkl_\w+)\)\(.*\);$/).flatten
INTEGERS = {
  "int32_t" => "int", "uint32_t" => "unsigned int", "zkl_status" => "int", "int64_t" => "long long",
  "uint64_t" => "unsigned long long", "uint8_t" => "unsigned char",
}.freeze

module Zkl
  extend Fiddle::Importer
end

Zkl.dlload library
INTEGERS.each { |name, type| Zkl.send :typealias, name, type }
POINTERS.each { |name| Zkl.send :typealias, name, "void *" }
DECLARATIONS.scan(/^(?!typedef).*\(.*\);$/) { |function| Zkl.extern function.delete_suffix(";").gsub("*const *", "**") }
Participant = Zkl.struct(DECLARATIONS[/^typedef struct zkl_participant \{(.*?)\n\}/m, 1].split(";").map(&:strip).reject(&:empty?))

def check(holds, what)
  abort "#{what}; last error: #{Zkl.zkl_last_error_message}" unless holds
end

# Calls a function with a pointer as its last argument, and returns the pointer that the function writes.
def output(function, *arguments)
  place = Fiddle::Pointer.malloc(Fiddle::SIZEOF_VOIDP, Fiddle::RUBY_FREE)
  check Zkl.public_send(function, *arguments, place) == NUMBERS[:ZKL_OK], function
  place.ptr
end

# Starts an operation with a function, and waits until the operation has ended with success.
def run(function, *arguments)
  op = output(function, *arguments)
  check Zkl.zkl_op_wait(op, 20_000) == NUMBERS[:ZKL_OK], "the operation of #{function}"
  op
end

check Zkl.zkl_version_number == NUMBERS[:ZKL_VERSION_NUMBER], "the version"
op = run(:zkl_client_start, servers, nil)
client = output(:zkl_op_client, op)
Zkl.zkl_op_free op
lock = output(:zkl_mutex_new, client, path)
op = run(:zkl_acquire_start, lock, 7, 20_000)
hold = output(:zkl_op_hold, op)
Zkl.zkl_op_free op
check Zkl.zkl_hold_is_held(hold) == 1, "the lock is not held"
op = run(:zkl_participants_start, lock)
participant = Participant.new(output(:zkl_op_participant, op, 0))
check participant.node_path.to_s.start_with?(path) && participant.holds == 1, "another participant"
Zkl.zkl_op_free op
Zkl.zkl_op_free run(:zkl_hold_release_start, hold)
Zkl.zkl_lock_free lock
Zkl.zkl_op_free run(:zkl_client_close_start, client)
Zkl.zkl_client_free client
puts "held"
