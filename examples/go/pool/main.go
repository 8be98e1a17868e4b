// Limits a pool to three users at a time, and waits for a turn: pool SERVERS PATH SECONDS
//
// A use ends when a line of input arrives.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"zklock"
)

func use() {
	fmt.Println("using")
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func run(servers, path, seconds string) error {
	limit, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return err
	}
	client, err := zklock.Connect(context.Background(), servers)
	if err != nil {
		return err
	}
	defer client.Close()
	pool, err := client.Semaphore(path, 3)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(limit*float64(time.Second)))
	defer cancel()
	lease, err := pool.Acquire(ctx, 1)
	if errors.Is(err, zklock.ErrTimeout) {
		fmt.Println("full")
		return nil
	}
	if err != nil {
		return err
	}
	use()
	if err := lease.Release(); err != nil {
		return err
	}
	fmt.Println("returned")
	return nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("pool: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: pool SERVERS PATH SECONDS")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}
