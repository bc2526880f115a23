package fsread_test

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/firestore"

	"github.com/reaper-ttl/reaper/shardread"
	"github.com/reaper-ttl/reaper/shardread/fsread"
)

// The newest 100 logins, of all shards.
func ExampleQuery_Run() {
	ctx := context.Background()
	client, err := firestore.NewClient(ctx, "my-project")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	logins := fsread.Query{
		Base:   client.Collection("events").Where("kind", "==", "login"),
		Shard:  "shard",
		Values: shardread.Numbers(16),
		Time:   "created",
		Newest: true,
		Limit:  100,
	}
	for doc, err := range logins.Run(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		var login struct {
			User    string    `firestore:"user"`
			Created time.Time `firestore:"created"`
		}
		if err := doc.DataTo(&login); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(login.Created, login.User)
	}
}

// A query that cannot give the right answer is refused before anything is sent.
func ExampleQuery_Validate() {
	client := &firestore.Client{}
	q := fsread.Query{
		Base:   client.CollectionGroup("events").Where("size", ">", 5),
		Shard:  "shard",
		Values: shardread.Strings("a", "b", "c"),
		Time:   "created",
	}
	fmt.Println(q.Validate())
	q.Base = client.CollectionGroup("events").Where("kind", "==", "login")
	fmt.Println(q.Validate())
	q.Values = shardread.Strings("a", "b", "a")
	fmt.Println(q.Validate())
	// Output:
	// base query: it has a filter that is not an equality
	// <nil>
	// shard value 3 of 3: "a" is there twice
}
