// Writes to a store that refuses writes from a former holder of the lock: fenced_write SERVERS PATH FILE
//
// Each line of input is a value to write.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zklock"
)

// store writes to the store: a file with the largest token so far, and a value. The lock on the file makes the comparison and the
// write one step, like a transaction in a database. It returns false and writes nothing if a later holder has already written.
func store(file string, token int64, value string) (bool, error) {
	opened, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return false, err
	}
	defer opened.Close()
	if err := syscall.Flock(int(opened.Fd()), syscall.LOCK_EX); err != nil {
		return false, err
	}
	text, err := io.ReadAll(opened)
	if err != nil {
		return false, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	if largest, err := strconv.ParseInt(first, 10, 64); err == nil && token < largest {
		return false, nil
	}
	if err := opened.Truncate(0); err != nil {
		return false, err
	}
	_, err = opened.WriteAt([]byte(fmt.Sprintln(token, value)), 0)
	return err == nil, err
}

func run(servers, path, file string) error {
	client, err := zklock.Connect(context.Background(), servers)
	if err != nil {
		return err
	}
	defer client.Close()
	lock, err := client.Mutex(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	hold, err := lock.Acquire(ctx)
	if err != nil {
		return err
	}
	fmt.Println("holds with token", hold.FencingToken())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		isWritten, err := store(file, hold.FencingToken(), lines.Text())
		switch {
		case err != nil:
			return err
		case isWritten:
			fmt.Println("written")
		default:
			fmt.Println("refused")
		}
	}
	switch err := hold.Release(); {
	case errors.Is(err, zklock.ErrLost):
		fmt.Println("lost")
	case err != nil:
		return err
	default:
		fmt.Println("released")
	}
	return nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("fenced_write: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: fenced_write SERVERS PATH FILE")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}
