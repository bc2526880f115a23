package dsread_test

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/shardread"
	"github.com/reaper-ttl/reaper/shardread/dsread"
)

// The newest 100 logins, of all shards.
func ExampleRun() {
	ctx := context.Background()
	client, err := datastore.NewClient(ctx, "my-project")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	type Login struct {
		Kind    string    `datastore:"kind"`
		User    string    `datastore:"user"`
		Shard   int       `datastore:"shard"`
		Created time.Time `datastore:"created"`
	}
	logins := dsread.Query{
		Kind:   "Event",
		Where:  []dsread.Equal{{Property: "kind", Value: "login"}},
		Shard:  "shard",
		Values: shardread.Numbers(16),
		Time:   "created",
		Newest: true,
		Limit:  100,
	}
	for item, err := range dsread.Run[Login](ctx, client, logins) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(item.Key, item.Value.Created, item.Value.User)
	}
}

// A query that cannot give the right answer is refused before anything is sent.
func ExampleQuery_Validate() {
	q := dsread.Query{Kind: "Event", Shard: "shard", Values: shardread.Numbers(16), Time: "created", PerQuery: 100}
	fmt.Println(q.Validate())
	q.PerQuery = 10
	fmt.Println(q.Validate())
	q.Values = shardread.Strings("a", "b", "a")
	fmt.Println(q.Validate())
	// Output:
	// 100 shards per query; it takes 1 to 30
	// <nil>
	// shard value 3 of 3: "a" is there twice
}
