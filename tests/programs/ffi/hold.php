<?php
// Reads include/zklock_ffi.h with the FFI of PHP, and holds a lock with operations: hold.php HEADER LIBRARY SERVERS PATH

[, $header, $library, $servers, $path] = $argv;
// The FFI finds each declared function in the library, or fails.
$zkl = FFI::cdef(file_get_contents($header), $library);

function check(bool $holds, string $what): void
{
    global $zkl;
    if (!$holds) {
        fwrite(STDERR, "$what; last error: " . $zkl->zkl_last_error_message() . "\n");
        exit(1);
    }
}

/** Starts an operation with a function, and waits until the operation has ended with success. */
function run(string $function, mixed ...$arguments): FFI\CData
{
    global $zkl;
    $op = $zkl->new("zkl_op *");
    check($zkl->$function(...[...$arguments, FFI::addr($op)]) === $zkl->ZKL_OK, $function);
    check($zkl->zkl_op_wait($op, 20000) === $zkl->ZKL_OK, "the operation of $function");
    return $op;
}

check($zkl->zkl_version_number() === $zkl->ZKL_VERSION_NUMBER, "the version");
$op = run("zkl_client_start", $servers, null);
$client = $zkl->new("zkl_client *");
check($zkl->zkl_op_client($op, FFI::addr($client)) === $zkl->ZKL_OK, "zkl_op_client");
$zkl->zkl_op_free($op);
$lock = $zkl->new("zkl_lock *");
check($zkl->zkl_mutex_new($client, $path, FFI::addr($lock)) === $zkl->ZKL_OK, "zkl_mutex_new");
$op = run("zkl_acquire_start", $lock, 7, 20000);
$hold = $zkl->new("zkl_hold *");
check($zkl->zkl_op_hold($op, FFI::addr($hold)) === $zkl->ZKL_OK, "zkl_op_hold");
$zkl->zkl_op_free($op);
check($zkl->zkl_hold_is_held($hold) === 1, "the lock is not held");
$op = run("zkl_participants_start", $lock);
$participant = $zkl->new("zkl_participant *");
check($zkl->zkl_op_participant($op, 0, FFI::addr($participant)) === $zkl->ZKL_OK, "zkl_op_participant");
check(str_starts_with(FFI::string($participant->node_path), $path) && $participant->holds === 1, "another participant");
$zkl->zkl_op_free($op);
$metrics = $zkl->new("zkl_metrics");
check($zkl->zkl_client_metrics($client, FFI::sizeof($metrics), FFI::addr($metrics)) === $zkl->ZKL_OK, "metrics");
check($metrics->size === FFI::sizeof($metrics) && $metrics->held === 1, "the metrics have another layout");
$zkl->zkl_op_free(run("zkl_hold_release_start", $hold));
$zkl->zkl_lock_free($lock);
$zkl->zkl_op_free(run("zkl_client_close_start", $client));
$zkl->zkl_client_free($client);
echo "held\n";
